//! The line of figures.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::cpu::Cpu;
use crate::options::Target;

/// From here on time and CPU are counted. Threads that were counted must still be there at the end.
pub(crate) struct Measured {
    cpu: Cpu,
    began: Instant,
    protocol: String,
}

impl Measured {
    pub(crate) fn begin(target: &Target) -> Self {
        let protocol = format!("{:?}", target.protocol).to_lowercase();
        Self { cpu: Cpu::read(&target.brokers), began: Instant::now(), protocol }
    }

    /// Ends counting.
    pub(crate) fn end(self, count: u64) -> Report {
        let seconds = self.began.elapsed().as_secs_f64();
        let used = self.cpu.since();
        let mut fields = Map::new();
        fields.insert("protocol".to_owned(), json!(self.protocol));
        fields.insert("count".to_owned(), json!(count));
        fields.insert("seconds".to_owned(), json!(seconds));
        fields.insert("per_s".to_owned(), json!((count as f64 / seconds).round()));
        for (name, cpu) in used {
            // Seconds a million are microseconds each.
            fields.insert(format!("{name}_cpu_s_per_million"), json!(cpu / count as f64 * 1e6));
            fields.insert(format!("{name}_busy"), json!(cpu / seconds));
        }
        Report(fields)
    }
}

/// What was measured.
#[derive(Default)]
pub(crate) struct Report(Map<String, Value>);

impl Report {
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn print(self) -> Result<()> {
        println!("{}", serde_json::to_string(&Value::Object(self.0))?);
        Ok(())
    }
}
