//! Processes that tests start: they get signals, and do not outlive who started them.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::{io, thread};

pub use libc::{SIGCONT, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM};

/// Sends a signal to a process that the tests have started and not yet waited for.
#[allow(unsafe_code, reason = "kill takes no pointers")]
pub fn send_signal(pid: u32, signal: i32) {
    if pid > 1 {
        unsafe { libc::kill(pid as libc::pid_t, signal) };
    }
}

/// The child gets `signal` when the thread that starts it ends, also when the tests are killed. Set after a change of uid,
/// which would clear it: `pre_exec` runs after `uid`.
#[allow(unsafe_code, reason = "pre_exec is unsafe; prctl is async-signal-safe")]
pub fn die_with_thread(command: &mut Command, signal: i32) {
    unsafe {
        command.pre_exec(move || match libc::prctl(libc::PR_SET_PDEATHSIG, signal) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// A thread that starts children for others, so that they live as long as this value and no longer.
pub struct Starter {
    orders: Mutex<Sender<Order>>,
}

type Order = (Command, Sender<io::Result<Child>>);

impl Starter {
    /// Children are killed (signal 9) when this is dropped, or when the tests are.
    pub fn new() -> Self {
        let (orders, received) = channel::<Order>();
        let obey = move || {
            for (mut command, answer) in received {
                die_with_thread(&mut command, SIGKILL);
                let _ = answer.send(command.spawn());
            }
        };
        thread::Builder::new().name("start children".into()).spawn(obey).expect("a thread");
        Starter { orders: Mutex::new(orders) }
    }

    pub fn start(&self, command: Command) -> io::Result<Child> {
        let (answer, answered) = channel();
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.send((command, answer)).expect("the starter's thread lives");
        drop(orders);
        answered.recv().expect("the starter's thread answers")
    }
}

impl Default for Starter {
    fn default() -> Self {
        Starter::new()
    }
}
