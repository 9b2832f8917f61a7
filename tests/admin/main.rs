//! The admin page and API: what is shown, what is done, and who is refused. On the router where that is enough, in a real
//! browser where only that can tell.

mod actions;
mod keys;
mod outage;
mod overview;
mod patience;
mod router;
mod xss;
