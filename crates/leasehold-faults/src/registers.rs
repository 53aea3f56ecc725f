//! What the locks protect in a history: a register that checks tokens, and one, the
//! control, that does not. Both are files that worker processes share.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub mod fenced;
pub mod unfenced;

pub use fenced::Fenced;
pub use unfenced::Unfenced;

/// Fields of fixed width: one small `write` replaces them all, so that a killed writer
/// leaves either the old or the new ones.
const WIDTH: usize = 20;

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)
}

fn read<const N: usize>(file: &File) -> io::Result<[u64; N]> {
    let mut text = vec![b' '; N * WIDTH];
    let mut filled = 0;
    while filled < text.len() {
        match file.read_at(&mut text[filled..], filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    let mut fields = [0; N];
    for (field, digits) in fields.iter_mut().zip(text.chunks(WIDTH)) {
        let digits = str::from_utf8(digits).map_err(io::Error::other)?.trim();
        if !digits.is_empty() {
            *field = digits.parse().map_err(io::Error::other)?;
        }
    }
    Ok(fields)
}

fn write<const N: usize>(file: &File, fields: [u64; N]) -> io::Result<()> {
    let text: String = fields.iter().map(|field| format!("{field:>WIDTH$}")).collect();
    file.write_all_at(text.as_bytes(), 0)
}
