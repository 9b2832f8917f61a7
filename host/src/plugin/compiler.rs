use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use outboxd_core::safe_text;
use rustix::process::{Resource, Rlimit, Signal, nice, set_parent_process_death_signal, setrlimit};
use wasmtime::Engine;

use super::component::{COMPONENT_BYTES_MAX, compile};
use super::engine::strict_config;

/// The word that makes this program a compiler: `outboxd compile-plugin MEMORY CPU`. Not for people.
const WORD: &str = "compile-plugin";
/// A larger artefact is not read. Bytes.
const ARTEFACT_BYTES_MAX: u64 = 1 << 30;

/// Where plugins are compiled.
#[derive(Clone, Debug, Default)]
pub enum Compiler {
    /// In this process: for tests and single commands. A component that is made to exhaust compilers exhausts this one.
    #[default]
    InProcess,
    /// In a process of its own, with bounds of its own: what is made to exhaust a compiler dies there, alone.
    Child(ChildCompiler),
}

/// A compiler in a process of its own: no settings, no secrets, no environment, low priority.
#[derive(Clone, Debug)]
pub struct ChildCompiler {
    /// A program that begins with [`child_main`].
    pub program: PathBuf,
    /// Bytes of address space. Default 4 GiB: a Python plugin takes half of it.
    pub memory: u64,
    /// Computing, over all its threads. Default 120 s.
    pub cpu: Duration,
    /// Default 10 min: generous, since it may share its cores with much else.
    pub wall: Duration,
}

impl Compiler {
    /// A child of this very program.
    pub fn child_of_this_program() -> io::Result<Compiler> {
        Ok(Compiler::Child(ChildCompiler::new(std::env::current_exe()?)))
    }

    /// The native artefact of a component; the text says what is wrong with it.
    pub(crate) fn compile(&self, engine: &Engine, bytes: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Compiler::InProcess => compile(engine, bytes),
            Compiler::Child(child) => child.compile(bytes),
        }
    }
}

impl ChildCompiler {
    pub fn new(program: PathBuf) -> Self {
        ChildCompiler { program, memory: 4 << 30, cpu: Duration::from_secs(120), wall: Duration::from_secs(600) }
    }

    fn compile(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut child =
            self.spawn().map_err(|error| format!("no compiler: {:?} cannot be started: {error}", self.program))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (status, artefact, said) = std::thread::scope(|scope| {
            scope.spawn(move || {
                // A child that ends early says why by its exit code.
                stdin.map(|mut stdin| stdin.write_all(bytes))
            });
            let artefact = scope.spawn(move || read(stdout, ARTEFACT_BYTES_MAX));
            let said = scope.spawn(move || read(stderr, 64 << 10));
            let status = wait(&mut child, self.wall);
            (status, artefact.join().unwrap_or_default(), said.join().unwrap_or_default())
        });
        let said = safe_text(String::from_utf8_lossy(&said).trim(), 1 << 10);
        match status {
            Some(status) if status.success() && !artefact.is_empty() => Ok(artefact),
            Some(status) if status.code() == Some(1) && !said.is_empty() => Err(said),
            Some(status) => Err(format!("it cannot be compiled within bounds: {}", self.how_it_ended(status, &said))),
            None => Err(format!("it cannot be compiled within {} s", self.wall.as_secs())),
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        Command::new(&self.program)
            .arg(WORD)
            .args([self.memory.to_string(), self.cpu.as_secs().max(1).to_string()])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }

    fn how_it_ended(&self, status: ExitStatus, said: &str) -> String {
        use std::os::unix::process::ExitStatusExt;
        const SIGXCPU: i32 = 24;
        const SIGKILL: i32 = 9;
        let bounds = format!("{} MiB of memory and {} s of computing", self.memory >> 20, self.cpu.as_secs());
        match status.signal() {
            Some(SIGXCPU | SIGKILL) => {
                format!("it took more than {} s of computing, or the machine ran out of memory", self.cpu.as_secs())
            }
            // An allocation that fails aborts, and so does a stack that ends.
            Some(signal) => format!("the compiler ended by signal {signal} within its {bounds}"),
            None => format!("the compiler ended with {status} ({})", said.lines().next().unwrap_or("it said nothing")),
        }
    }
}

fn read(from: Option<impl Read>, bytes_max: u64) -> Vec<u8> {
    let mut bytes = vec![];
    if let Some(from) = from {
        // A pipe that breaks leaves what came; the exit code tells the rest.
        from.take(bytes_max).read_to_end(&mut bytes).ok();
    }
    bytes
}

/// Waits for the child, or ends it. What it still writes is read by others meanwhile.
fn wait(child: &mut Child, wall: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + wall;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => {
                child.kill().ok();
                child.wait().ok();
                return None;
            }
        }
    }
}

/// Runs this process as a compiler where its arguments say so: component in at stdin, artefact out at stdout. To be asked
/// first thing in `main`.
pub fn child_main() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != WORD {
        return None;
    }
    let number = |arg: Option<OsString>| arg.and_then(|arg| arg.to_str()?.parse::<u64>().ok());
    let compiled = match (number(args.next()), number(args.next())) {
        (Some(memory), Some(cpu)) => {
            bounded(memory, cpu).map_err(|error| error.to_string()).and_then(|()| compile_stdin())
        }
        _ => Err(format!("usage: {WORD} MEMORY_BYTES CPU_SECONDS < COMPONENT > ARTEFACT")),
    };
    Some(match compiled {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Straight to the stream: nobody else writes in this process.
            writeln!(io::stderr(), "{error}").ok();
            ExitCode::FAILURE
        }
    })
}

/// Bounds this process before it looks at a single byte.
fn bounded(memory: u64, cpu: u64) -> io::Result<()> {
    let limit = |resource, most| setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    limit(Resource::As, memory)?;
    limit(Resource::Cpu, cpu)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Fsize, 0)?;
    // Ends with the relay, and stands back behind it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    nice(10)?;
    Ok(())
}

fn compile_stdin() -> Result<(), String> {
    let mut bytes = vec![];
    let read = io::stdin().lock().take(COMPONENT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("the component cannot be read: {error}"))?;
    let engine = Engine::new(&strict_config()).map_err(|error| format!("no compiler: {error:#}"))?;
    let artefact = compile(&engine, &bytes)?;
    io::stdout().lock().write_all(&artefact).map_err(|error| format!("the artefact cannot be written: {error}"))
}
