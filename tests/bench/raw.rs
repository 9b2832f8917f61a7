use std::time::Instant;

use uuid::Uuid;

use crate::cpu;
use crate::drain::Drained;
use crate::stage::Outbox;

/// Messages of one claim.
const BATCH: i64 = 500;

/// The plainest loop there is on the same table: claim 500, commit, delete them, commit. Prepared
/// statements, one connection, no handler, no lease, no fence, no history.
pub async fn drain(outbox: &Outbox, messages: u64) -> Drained {
    let mut connection = outbox.connection().await;
    let (begun, own) = (Instant::now(), cpu::own());
    let mut drained = 0;
    loop {
        let claim = "update outbox set state = 'processing', attempts = attempts + 1, available_at = now() + interval '30 seconds'
            where id = any (array(
                select id from outbox
                where topic = 't0' and state in ('pending', 'processing') and available_at <= now()
                order by available_at, id limit $1 for update skip locked))
            returning id, topic, payload::text";
        let claimed: Vec<(Uuid, String, String)> =
            sqlx::query_as(claim).bind(BATCH).fetch_all(&mut connection).await.expect("claimed");
        if claimed.is_empty() {
            break;
        }
        let ids: Vec<Uuid> = claimed.iter().map(|(id, ..)| *id).collect();
        let delete = sqlx::query("delete from outbox where id = any ($1)").bind(ids);
        drained += delete.execute(&mut connection).await.expect("deleted").rows_affected();
    }
    let drained_in = Drained::of(outbox, messages, begun, own).await;
    assert_eq!(drained, messages, "the raw loop left messages");
    drained_in
}
