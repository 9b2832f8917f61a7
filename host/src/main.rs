//! Parse, run, exit code: see `outboxd::cli`.

fn main() -> std::process::ExitCode {
    outboxd::cli::main()
}
