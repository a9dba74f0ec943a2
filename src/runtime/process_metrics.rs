//! What this process takes of the machine, under the names that all Prometheus libraries use.

use std::fs;

use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::{SysconfVar, sysconf},
};
use prometheus::{
    Counter, Gauge, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// The process's figures, read on each scrape. A figure that cannot be read stays 0.
pub struct ProcessMetrics {
    descriptions: Vec<Desc>,
    /// Clock ticks of a second; `page` is the bytes of a page of memory.
    ticks: f64,
    page: f64,
}

struct ProcessSeries {
    cpu: Counter,
    resident: Gauge,
    virtual_: Gauge,
    start: Gauge,
    open: Gauge,
    most: Gauge,
}

impl Default for ProcessMetrics {
    fn default() -> Self {
        let series = ProcessSeries::new();
        let collectors = series.collectors();
        let descriptions = collectors.iter().flat_map(|collector| collector.desc());
        let descriptions = descriptions.cloned().collect();
        Self {
            descriptions,
            ticks: system_value(SysconfVar::CLK_TCK),
            page: system_value(SysconfVar::PAGE_SIZE),
        }
    }
}

impl ProcessMetrics {
    fn update_series(&self, series: &ProcessSeries) -> Option<()> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The process's name, in parentheses, may hold anything. The first field behind it is
        // number 3.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        series.cpu.inc_by((field(14)? + field(15)?) / self.ticks);
        series.virtual_.set(field(23)?);
        series.resident.set(field(24)? * self.page);
        let machine = fs::read_to_string("/proc/stat").ok()?;
        let boot_time = machine.lines().find_map(|line| line.strip_prefix("btime "))?;
        series.start.set(boot_time.trim().parse::<f64>().ok()? + field(22)? / self.ticks);
        let open_files = u32::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()?;
        series.open.set(f64::from(open_files));
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        #[expect(clippy::cast_precision_loss, reason = "a limit is a round number")]
        series.most.set(soft as f64);
        Some(())
    }
}

fn system_value(variable: SysconfVar) -> f64 {
    let value = sysconf(variable).ok().flatten().and_then(|value| u32::try_from(value).ok());
    value.map_or(1.0, f64::from)
}

impl ProcessSeries {
    fn new() -> Self {
        let gauge = |name: &str, help: &str| {
            Gauge::with_opts(Opts::new(name, help)).expect("the metric's name is valid")
        };
        Self {
            cpu: Counter::new(
                "process_cpu_seconds_total",
                "Seconds of processor time that the process has taken.",
            )
            .expect("the metric's name is valid"),
            resident: gauge("process_resident_memory_bytes", "Memory that the process takes."),
            virtual_: gauge("process_virtual_memory_bytes", "Addresses that the process uses."),
            start: gauge("process_start_time_seconds", "When the process began, as Unix time."),
            open: gauge("process_open_fds", "Files and connections that are open."),
            most: gauge("process_max_fds", "Files and connections that may be open."),
        }
    }

    fn collectors(&self) -> [&dyn Collector; 6] {
        let Self { cpu, resident, virtual_, start, open, most } = self;
        [cpu, resident, virtual_, start, open, most]
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let series = ProcessSeries::new();
        let _incomplete = self.update_series(&series).is_none();
        series.collectors().iter().flat_map(|collector| collector.collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_process_knows_what_it_takes() {
        let series = ProcessSeries::new();
        ProcessMetrics::default().update_series(&series).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - series.start.get();
        assert!((-2.0..86400.0).contains(&age), "{age}");
        assert!((1e6..1e11).contains(&series.resident.get()), "{}", series.resident.get());
        assert!(series.virtual_.get() >= series.resident.get());
        assert!((3.0..series.most.get()).contains(&series.open.get()), "{}", series.open.get());
        let begun = series.cpu.get();
        let mut sum = 0_u64;
        let later = loop {
            sum = (0..1_000_000).fold(sum, |sum, number| std::hint::black_box(sum ^ number));
            let series = ProcessSeries::new();
            ProcessMetrics::default().update_series(&series).unwrap();
            if series.cpu.get() > begun {
                break series.cpu.get();
            }
        };
        assert!(later - begun < 60.0, "{begun} {later}");
    }
}
