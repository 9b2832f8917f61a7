use outboxd::plugin::Golden;

use crate::assert_readable;

pub fn try_one(text: &str) {
    if let Err(error) = Golden::parse(text) {
        assert_readable(&error);
    }
}
