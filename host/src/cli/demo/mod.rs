//! `outboxd demo`: the whole promise kept before your eyes. A shop commits and rolls back, a receiver fails and is killed, the
//! relay is killed, and in the end the ledgers of shop and receiver are held against each other.

mod database;
mod narrator;
mod receiver;
mod relay;
mod report;
mod shop;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use narrator::Narrator;
use receiver::Receiver;
use relay::RelayProcess;
use report::{Verdict, grouped};
use shop::Shop;
use stage::Stage;

use super::args::Global;
use super::output;

/// How long the killed receiver stays away.
const RECEIVER_AWAY: Duration = Duration::from_secs(1);
/// Without any news for so long, what is missing is lost.
const STALL_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// The folder that holds webhook.wasm
    #[arg(long, value_name = "DIR", env = "OUTBOXD_PLUGINS", default_value = "plugins")]
    pub plugins: PathBuf,
    /// How many orders the shop writes; every tenth is rolled back
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub orders: u32,
    /// Stay up afterwards, and say what to look at
    #[arg(long)]
    pub keep: bool,
}

/// Plays the demo, in the database of the command line where that is PostgreSQL, else in an SQLite file of its own, and
/// prints the verdict. Leaves nothing behind: processes, folder and tables are gone when it returns, on Ctrl-C too.
pub(super) async fn run(global: &Global, args: DemoArgs) -> anyhow::Result<ExitCode> {
    let mut interrupted = Interrupt::new()?;
    let stage = Stage::build(&args, global.database.as_deref()).await?;
    let mut receiver = Receiver::new(&stage);
    let mut relay = RelayProcess::new(&stage);
    let narrator = Narrator::new(args.orders);
    if global.database.as_deref().is_some_and(|url| url.starts_with("sqlite:")) {
        narrator.show("the SQLite file that is named is left alone: the demo makes one of its own\n");
    }

    let outcome = tokio::select! {
        verdict = play(&args, &stage, &mut receiver, &mut relay, &narrator) => verdict,
        () = interrupted.wait() => Err(anyhow!("interrupted; nothing is left behind")),
    };
    narrator.finish();
    if let Ok(verdict) = &outcome {
        output::line(format_args!("\n{verdict}"));
        if args.keep {
            eprintln!("{}", stage.what_to_look_at()?);
            interrupted.wait().await;
        }
    }

    relay.kill().await;
    receiver.stop().await;
    stage.clear().await;
    Ok(if outcome?.kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The story. Ends with the verdict when every message has come to rest, or when nothing moves any more.
async fn play(
    args: &DemoArgs,
    stage: &Stage,
    receiver: &mut Receiver,
    relay: &mut RelayProcess,
    narrator: &Narrator,
) -> anyhow::Result<Verdict> {
    narrator.show(&stage.ceiling());
    relay.migrate().await?;
    stage.database.open_shop().await?;
    receiver.start()?;
    relay.start()?;
    narrator.say("a receiver listens, a relay runs, and the shop opens");

    let shop = Shop::new(args.orders);
    let started = Instant::now();
    let trade = async {
        shop.trade(&stage.database).await?;
        let (committed, rolled_back) = shop.counts();
        narrator.say(&format!(
            "the shop closes: {} orders committed, {} rolled back",
            grouped(committed),
            grouped(rolled_back)
        ));
        Ok(())
    };
    let ((), ()) = tokio::try_join!(trade, troubles(&shop, stage, receiver, relay, narrator))?;

    Ok(Verdict::new(&shop.ledger(), &receiver.ledger(), &stage.database.tally().await?, started))
}

/// Kills the receiver when a third has arrived and the relay when two thirds have, then waits for the rest.
async fn troubles(
    shop: &Shop,
    stage: &Stage,
    receiver: &mut Receiver,
    relay: &mut RelayProcess,
    narrator: &Narrator,
) -> anyhow::Result<()> {
    let expected = shop.commits_planned();

    if arrived(expected / 3, receiver, relay, narrator).await? == Progress::Stalled {
        return Ok(());
    }
    receiver.stop().await;
    narrator.say("the receiver is killed: connections are cut, its port is closed");
    tokio::time::sleep(RECEIVER_AWAY).await;
    receiver.start().context("the receiver cannot come back")?;
    narrator.say("the receiver is back");

    if arrived(expected * 2 / 3, receiver, relay, narrator).await? == Progress::Stalled {
        return Ok(());
    }
    relay.kill().await;
    narrator.say("the relay is killed with SIGKILL; its messages stay leased for up to 2 s");
    relay.start()?;
    narrator.say("another relay is started");

    if arrived(expected, receiver, relay, narrator).await? == Progress::Stalled {
        return Ok(());
    }
    narrator.say("every order has arrived; waiting for the last lease to be settled");
    let deadline = Instant::now() + STALL_MAX;
    while stage.database.tally().await?.live > 0 && Instant::now() < deadline {
        relay.check()?;
        narrator.progress(receiver.delivered());
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Made,
    Stalled,
}

/// Waits until the receiver has accepted `enough` messages. Stalled: nothing came for a long time.
async fn arrived(
    enough: usize,
    receiver: &Receiver,
    relay: &mut RelayProcess,
    narrator: &Narrator,
) -> anyhow::Result<Progress> {
    let (mut last, mut since) = (receiver.delivered(), Instant::now());
    while last < enough {
        relay.check()?;
        tokio::time::sleep(POLL).await;
        let now = receiver.delivered();
        narrator.progress(now);
        if now > last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > STALL_MAX {
            narrator.say(&format!("nothing has arrived for {} s", STALL_MAX.as_secs()));
            return Ok(Progress::Stalled);
        }
    }
    Ok(Progress::Made)
}

/// Ctrl-C, or a polite request to end.
struct Interrupt {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Interrupt {
    fn new() -> anyhow::Result<Self> {
        Ok(Interrupt { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
