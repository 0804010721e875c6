//! A file in memory, for tests: counts its requests and fails them on demand.

use super::Backend;
use crate::error::{Error, Outcome};
use std::io::IoSlice;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file in memory that several ranks share.
#[derive(Clone, Debug, Default)]
pub struct MemoryFile {
    bytes: Arc<Mutex<Vec<u8>>>,
    failure: Arc<AtomicI32>,
    in_sync: Arc<Mutex<Option<Hook>>>,
}

/// What happens during a sync.
struct Hook(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl MemoryFile {
    /// A file with these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        MemoryFile { bytes: Arc::new(Mutex::new(bytes)), ..MemoryFile::default() }
    }

    /// The present content of the file.
    pub fn bytes(&self) -> Vec<u8> {
        self.locked().clone()
    }

    /// Lets all writes fail with this errno value from now on; 0 ends that.
    pub fn fail_writes(&self, errno: i32) {
        self.failure.store(errno, Ordering::SeqCst);
    }

    /// Lets this happen during the next sync.
    pub fn during_next_sync(&self, hook: impl FnOnce() + Send + 'static) {
        *self.in_sync.lock().unwrap_or_else(PoisonError::into_inner) = Some(Hook(Box::new(hook)));
    }

    fn locked(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Outcome {
        match self.failure.load(Ordering::SeqCst) {
            0 => Ok(()),
            errno => Err(Error::Os { doing: "write", errno }),
        }
    }
}

impl Backend for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Outcome<usize> {
        let bytes = self.locked();
        let from = (offset as usize).min(bytes.len());
        let n = buffer.len().min(bytes.len() - from);
        buffer[..n].copy_from_slice(&bytes[from..from + n]);
        Ok(n)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Outcome {
        self.check()?;
        let mut bytes = self.locked();
        let mut at = offset as usize;
        for part in parts {
            if bytes.len() < at + part.len() {
                bytes.resize(at + part.len(), 0);
            }
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(())
    }

    fn size(&self) -> Outcome<u64> {
        Ok(self.locked().len() as u64)
    }

    fn set_size(&self, size: u64) -> Outcome {
        self.check()?;
        self.locked().resize(size as usize, 0);
        Ok(())
    }

    fn allocate(&self, size: u64) -> Outcome {
        self.check()?;
        let mut bytes = self.locked();
        if (bytes.len() as u64) < size {
            bytes.resize(size as usize, 0);
        }
        Ok(())
    }

    fn sync(&self) -> Outcome {
        let hook = self.in_sync.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Hook(happens)) = hook {
            happens();
        }
        self.check()
    }
}
