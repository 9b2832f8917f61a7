//! p

pub mod postgres;
