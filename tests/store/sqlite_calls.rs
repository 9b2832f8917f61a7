//! System calls of SQLite that fail when a test says so, by the hook that SQLite keeps for its own tests.

#![allow(unsafe_code, reason = "SQLite is C")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use libsqlite3_sys::{sqlite3_syscall_ptr, sqlite3_vfs_find};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Open,
    Read,
    Write,
}

pub const CALLS: [Call; 3] = [Call::Open, Call::Read, Call::Write];

/// The one that is to fail, once.
struct Fault {
    call: Call,
    database: PathBuf,
    calls_before: u64,
}

static FAULT: Mutex<Option<Fault>> = Mutex::new(None);
/// Other tests of this process go on meanwhile: they ask no more than this.
static IS_ARMED: AtomicBool = AtomicBool::new(false);

/// The files of one database. One at a time in a process.
pub struct SqliteCalls {
    database: PathBuf,
}

impl SqliteCalls {
    /// Comes between SQLite and the system, for good.
    pub fn replace(database: &str) -> SqliteCalls {
        static ONCE: Once = Once::new();
        ONCE.call_once(replace_all);
        SqliteCalls { database: database.into() }
    }

    /// Has that call fail with an input/output error, after so many that do not; or none. Answers whether one has failed.
    pub fn fail(&self, call: Call, calls_before: Option<u64>) -> bool {
        let fault = calls_before.map(|calls_before| Fault { call, database: self.database.clone(), calls_before });
        IS_ARMED.store(fault.is_some(), Ordering::SeqCst);
        let is_disarmed = fault.is_none();
        let left = std::mem::replace(&mut *FAULT.lock().expect("no test panics with it"), fault);
        is_disarmed && left.is_none()
    }
}

/// Whether this call is the one that fails. The database's log and index are files of the same name with an ending.
fn fails(call: Call, path: impl FnOnce() -> PathBuf) -> bool {
    if !IS_ARMED.load(Ordering::SeqCst) {
        return false;
    }
    let mut armed = FAULT.lock().expect("no test panics with it");
    let Some(fault) = armed.as_mut().filter(|fault| fault.call == call) else { return false };
    if !path().as_os_str().as_bytes().starts_with(fault.database.as_os_str().as_bytes()) {
        return false;
    }
    if fault.calls_before > 0 {
        fault.calls_before -= 1;
        return false;
    }
    *armed = None;
    // SAFETY: it is this thread's own.
    unsafe { *libc::__errno_location() = libc::EIO };
    true
}

fn path_of(file: c_int) -> PathBuf {
    std::fs::read_link(Path::new("/proc/self/fd").join(file.to_string())).unwrap_or_default()
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: SQLite passes what it would pass to open().
    unsafe {
        let name = || PathBuf::from(OsStr::from_bytes(CStr::from_ptr(path).to_bytes()));
        if fails(Call::Open, name) { -1 } else { libc::open(path, flags, mode) }
    }
}

unsafe extern "C" fn pread(file: c_int, into: *mut c_void, bytes: usize, at: i64) -> isize {
    // SAFETY: SQLite passes what it would pass to pread().
    if fails(Call::Read, || path_of(file)) { -1 } else { unsafe { libc::pread64(file, into, bytes, at) } }
}

unsafe extern "C" fn pwrite(file: c_int, from: *const c_void, bytes: usize, at: i64) -> isize {
    // SAFETY: SQLite passes what it would pass to pwrite().
    if fails(Call::Write, || path_of(file)) { -1 } else { unsafe { libc::pwrite64(file, from, bytes, at) } }
}

fn replace_all() {
    // Which of the two forms SQLite uses depends on how it was compiled; on 64 bits they are one.
    let calls: [(&CStr, *const ()); 5] = [
        (c"open", open as *const ()),
        (c"pread", pread as *const ()),
        (c"pread64", pread as *const ()),
        (c"pwrite", pwrite as *const ()),
        (c"pwrite64", pwrite as *const ()),
    ];
    // SAFETY: each stands for a call of the same arguments; SQLite keeps them as pointers to functions without any.
    unsafe {
        let vfs = sqlite3_vfs_find(std::ptr::null());
        let set = (*vfs).xSetSystemCall.expect("SQLite's own way to the system has the hook");
        for (name, call) in calls {
            let call = std::mem::transmute::<*const (), sqlite3_syscall_ptr>(call);
            assert_eq!(set(vfs, name.as_ptr(), call), 0, "{name:?}");
        }
    }
}
