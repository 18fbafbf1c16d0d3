//! Chunks in memory: the last ones that were used, so that reads of 128 KiB do not unpack each chunk twice.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use storage::table::Value;

const BYTES_MAX: usize = 48 << 20;

#[derive(Default)]
pub struct Memory {
    chunks: HashMap<Value, Bytes>,
    /// Oldest first.
    order: VecDeque<Value>,
    bytes: usize,
}

impl Memory {
    pub fn get(&self, value: &Value) -> Option<Bytes> {
        self.chunks.get(value).cloned()
    }

    pub fn put(&mut self, value: Value, chunk: Bytes) {
        self.bytes += chunk.len();
        match self.chunks.insert(value, chunk) {
            Some(before) => self.bytes -= before.len(),
            None => self.order.push_back(value),
        }
        while self.bytes > BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= self.chunks.remove(&oldest).map_or(0, |chunk| chunk.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go() {
        let mut memory = Memory::default();
        let chunk = Bytes::from(vec![0; 1 << 20]);
        for n in 0..60u8 {
            memory.put(Value([n; 32]), chunk.clone());
        }
        assert!(memory.get(&Value([0; 32])).is_none() && memory.get(&Value([59; 32])).is_some());
        for _ in 0..60 {
            memory.put(Value([59; 32]), chunk.clone());
        }
        assert!(memory.get(&Value([40; 32])).is_some(), "one that comes again takes no more room");
        assert!(memory.bytes <= BYTES_MAX && memory.chunks.len() == memory.order.len());
    }
}
