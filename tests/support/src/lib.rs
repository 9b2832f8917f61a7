//! What the test targets share: components to run and targets to deliver to.

pub mod guests;
pub mod postgres;
pub mod receiver;
