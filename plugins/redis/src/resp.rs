//! As much of Redis's protocol as one command at a time needs.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Longer is no answer to what is asked here. Bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// What Redis says to a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status, a number, a string or nothing.
    Text(String),
    Error(String),
}

/// A connection of which one command after the other is asked.
pub struct Connection<S = TcpStream> {
    stream: BufReader<S>,
}

impl Connection {
    pub fn open(address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        // A failure costs latency, nothing else.
        stream.set_nodelay(true).ok();
        Ok(Connection { stream: BufReader::new(stream) })
    }
}

impl<S: Read + Write> Connection<S> {
    /// Sends a command and waits for its reply. After an error the connection is of no use.
    pub fn ask(&mut self, command: &[&[u8]]) -> io::Result<Reply> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for part in command {
            bytes.extend(format!("${}\r\n", part.len()).into_bytes());
            bytes.extend_from_slice(part);
            bytes.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| odd("an empty line"))?;
        match kind {
            "+" | ":" => Ok(Reply::Text(rest.into())),
            "-" => Ok(Reply::Error(rest.into())),
            "$" => match rest.parse() {
                Ok(-1) => Ok(Reply::Text(String::new())),
                Ok(length) => Ok(Reply::Text(self.text(length)?)),
                Err(_) => Err(odd(&line)),
            },
            _ => Err(odd(&line)),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut bytes = vec![];
        (&mut self.stream).take(REPLY_BYTES_MAX as u64).read_until(b'\n', &mut bytes)?;
        match bytes.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None if bytes.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            None => Err(odd(&String::from_utf8_lossy(&bytes))),
        }
    }

    fn text(&mut self, length: i64) -> io::Result<String> {
        let length = usize::try_from(length).ok().filter(|length| *length <= REPLY_BYTES_MAX);
        let mut bytes = vec![0; length.ok_or_else(|| odd("a string of an impossible length"))? + 2];
        self.stream.read_exact(&mut bytes)?;
        let text = bytes.strip_suffix(b"\r\n").ok_or_else(|| odd("a string without its end"))?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

fn odd(what: &str) -> io::Error {
    let shown: String = what.chars().take(100).collect();
    io::Error::new(io::ErrorKind::InvalidData, format!("this is not how Redis answers: {shown:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that has said all it will say.
    struct Peer {
        said: io::Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.said.read(buffer)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.heard.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn peer(said: &[u8]) -> Connection<Peer> {
        Connection { stream: BufReader::new(Peer { said: io::Cursor::new(said.into()), heard: vec![] }) }
    }

    #[test]
    fn a_command_goes_out_as_strings_with_their_lengths() {
        let mut connection = peer(b"+PONG\r\n");

        connection.ask(&[b"SET", b"k", b"a\r\nb"]).unwrap();

        assert_eq!(connection.stream.get_ref().heard, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n");
    }

    #[test]
    fn each_kind_of_reply_is_read_and_the_next_one_begins_behind_it() {
        let mut connection = peer(b"+OK\r\n:7\r\n$5\r\na\r\nbc\r\n$-1\r\n$0\r\n\r\n-ERR no such thing\r\n+OK\r\n");
        let text = |text: &str| Reply::Text(text.into());

        for expected in [
            text("OK"),
            text("7"),
            text("a\r\nbc"),
            text(""),
            text(""),
            Reply::Error("ERR no such thing".into()),
            text("OK"),
        ] {
            assert_eq!(connection.ask(&[b"PING"]).unwrap(), expected);
        }
        assert_eq!(connection.ask(&[b"PING"]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        let long = [b'+'; REPLY_BYTES_MAX + 10];
        for said in
            [&b"HTTP/1.1 400\r\n"[..], b"\r\n", b"+OK", b"$x\r\n", b"$-2\r\n", b"$99999999\r\n", b"$3\r\nabcde", &long]
        {
            assert!(peer(said).ask(&[b"PING"]).is_err(), "{:?}", String::from_utf8_lossy(said));
        }
    }
}
