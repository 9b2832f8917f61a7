//! What the contract `wit/v1` looks like in Rust. Generated; see `wit/v1/plugin.wit` for the words.

wasmtime::component::bindgen!({
    path: "../wit/v1",
    world: "host-side",
    imports: {
        "outboxd:plugin/http.send": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});
