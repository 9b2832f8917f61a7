//! How fast it is: every number beside a baseline of the same run, on the same server.
//!
//! `tests/bench/run` builds it optimised and runs it; `--quick` is the smoke run of `tests/all`, whose numbers mean nothing.
//! It needs PostgreSQL's programs and starts a server of its own, which waits for its disk as in production.

mod backlog;
mod calls;
mod cpu;
mod drain;
mod keys;
mod latency;
mod memory;
mod observed;
mod peers;
mod plugins;
mod publish;
mod raw;
mod report;
mod stage;
mod sustained;

use std::cell::LazyCell;
use std::time::Duration;

use clap::Parser;
use report::Report;
use stage::Stage;
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
#[command(about = "Measures a relay and its baselines")]
struct Args {
    /// Messages of each drain.
    #[arg(long, default_value_t = 30_000)]
    messages: u64,
    /// Rounds of each drain and its baseline, interleaved; the median of their ratios counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Messages of the cold backlog.
    #[arg(long, default_value_t = 1_000_000)]
    backlog: u64,
    /// Of those, how many are delivered: all takes minutes.
    #[arg(long, default_value_t = 100_000)]
    backlog_drained: u64,
    /// Seconds of each measurement at a rate.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Only these parts, such as `drain`; default all.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Also other queues, those that `tests/bench/peers/setup` has installed.
    #[arg(long)]
    peers: bool,
    /// Small numbers of everything: does it work?
    #[arg(long)]
    quick: bool,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let mut args = Args::parse();
    if args.quick {
        args = Args { messages: 300, rounds: 1, backlog: 2_000, backlog_drained: 500, seconds: 1, ..args };
    }
    // As `outboxd run` has it.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let report = runtime.block_on(measure(&args));
    match args.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.table()),
    }
}

async fn measure(args: &Args) -> Report {
    // As in `outboxd run`: what counting costs is part of every number.
    let metrics = outboxd::metrics::install().expect("nothing else counts here");
    tokio::spawn(outboxd::metrics::upkeep_until(metrics, CancellationToken::new()));
    // A server only for what needs one.
    let stage = LazyCell::new(Stage::start);
    let mut report = Report::default();
    let wanted = |part: &str| args.only.is_empty() || args.only.iter().any(|only| only == part);

    if wanted("calls") {
        calls::measure(&mut report, Duration::from_secs(args.seconds)).await;
    }
    if wanted("drain") {
        drain::measure(&stage, &mut report, args.messages, args.rounds).await;
    }
    if args.peers && wanted("peers") {
        peers::measure(&stage, &mut report, args.messages, args.rounds).await;
    }
    if wanted("relays") {
        drain::relays(&stage, &mut report, args.messages, args.rounds).await;
    }
    if wanted("topics") {
        drain::topics(&stage, &mut report, args.messages, args.rounds).await;
    }
    if wanted("sqlite") {
        drain::sqlite(&stage, &mut report, args.messages, args.rounds).await;
    }
    if wanted("keys") {
        keys::measure(&stage, &mut report, args.messages, args.rounds, args.backlog).await;
    }
    if wanted("publish") {
        publish::measure(&stage, &mut report, args.seconds, args.rounds).await;
    }
    if wanted("latency") {
        latency::measure(&stage, &mut report, args.seconds).await;
    }
    if wanted("sustained") {
        sustained::measure(&stage, &mut report, args.seconds).await;
    }
    if wanted("backlog") {
        backlog::measure(&stage, &mut report, args.backlog, args.backlog_drained).await;
    }
    if wanted("memory") {
        memory::measure(&stage, &mut report).await;
    }
    report
}
