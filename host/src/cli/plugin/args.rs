use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::args::name_and_value;
use crate::plugin::egress::HostPattern;

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// List the plugins of a running relay, as its admin address tells them
    List {
        /// Where the relay is asked [default: 127.0.0.1:8787]
        #[arg(long, value_name = "ADDR", env = "OUTBOXD_ADMIN", hide_env_values = true)]
        admin: Option<String>,
        /// Answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Begin a plugin: a small project in a new folder of that name
    New {
        /// Its name: the folder's, the component's and the topic's
        name: String,
        /// The language it is written in
        #[arg(long)]
        lang: Lang,
    },
    /// Make a component of a core module, which is what compilers of C and Go stop at
    Build {
        /// The core module
        #[arg(value_name = "NAME.core.wasm")]
        file: PathBuf,
        /// Where the component goes [default: NAME.wasm beside it]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Say whether a file would be accepted as a plugin, what it could reach and what it costs
    Check {
        /// The component; its manifest lies beside it
        file: PathBuf,
        /// Answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Play the golden messages beside a component (NAME.tests/*.json) with targets that answer from them
    Test {
        /// A component, or a folder of them
        path: PathBuf,
    },
    /// Hand one message to a component, without a database; its requests really go out
    Invoke(InvokeArgs),
}

#[derive(Debug, Args)]
pub struct InvokeArgs {
    /// The component; its manifest lies beside it
    pub file: PathBuf,
    /// The message's topic [default: the first of the manifest]
    #[arg(long)]
    pub topic: Option<String>,
    /// The message's payload
    #[arg(long, value_name = "JSON")]
    pub payload: String,
    /// The message's key
    #[arg(long)]
    pub key: Option<String>,
    /// A header of the message, as often as there are some
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub headers: Vec<(String, String)>,
    /// Which try it is
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub attempt: u32,
    /// Let it reach this too, beyond manifest and outboxd.toml: `http://127.0.0.1:9000`
    #[arg(long, value_name = "HOST", value_parser = HostPattern::parse)]
    pub allow: Vec<HostPattern>,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// A language that `plugin new` has a template for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lang {
    Rust,
    /// JavaScript, with TypeScript's types
    Js,
    Python,
    Go,
    C,
}
