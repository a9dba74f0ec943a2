//! Options of the Java virtual machine, as the vendor ships them.
//!
//! The launcher takes every line that starts with `-` from `jvm-server.options` and from the
//! file of the running Java version, and splits at white space. The options lie in `stock`.

/// Options for every Java version. Heap dumps are left out: they would fill the data volume, and a
/// node that is out of memory is restarted.
pub(super) const SERVER: &str = include_str!("stock/jvm-server.options");

/// Options of the default collector, used unless the user chose another: the JVM refuses two.
pub(super) const COLLECTOR: &str = include_str!("stock/collector.options");

pub(super) const JAVA_11: &str = include_str!("stock/jvm11-server.options");

/// Options that Java 17 needs beyond those of Java 11.
pub(super) const JAVA_17_MORE: &str = include_str!("stock/jvm17-server.options");

/// Do the user's options choose the garbage collector?
pub fn choose_collector(options: &[String]) -> bool {
    options.iter().any(|option| option.starts_with("-XX:+Use") && option.ends_with("GC"))
}
