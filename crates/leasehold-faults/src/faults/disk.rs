//! A file system so small that it can be filled.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A small file system in memory. Unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of this size at `folder`, or says why it cannot (it needs root).
    pub fn mount(folder: &Path, kibibytes: u32) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let size = format!("size={kibibytes}k");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "leasehold-faults"]).arg(folder);
        let output = mount.output().context("mount")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(Self(folder.to_owned()))
    }

    /// Takes all the space that is left.
    pub fn fill(&self) -> Result<()> {
        let mut filler = File::create(self.filler())?;
        for size in [4096, 1] {
            loop {
                match filler.write(&vec![0; size]) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Gives it back.
    pub fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // By its folder only; busy for as long as somebody has it open.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_filled_and_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let disk = SmallDisk::mount(&folder.path().join("disk"), 64).expect("root may mount");
        let file = folder.path().join("disk/file");
        disk.fill().unwrap();
        assert_eq!(fs::write(&file, "more").unwrap_err().kind(), ErrorKind::StorageFull);
        disk.empty().unwrap();
        fs::write(&file, "more").unwrap();
    }
}
