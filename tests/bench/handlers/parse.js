// Reads its message as JSON and succeeds.
export const handler = {
  handle(message) {
    const order = JSON.parse(String.fromCharCode(...message.payload));
    if (order.do !== "succeed") throw { tag: "cancel", val: "no such message was sent" };
  },
};
