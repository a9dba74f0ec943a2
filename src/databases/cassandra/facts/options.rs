//! Options of the Java virtual machine, as the vendor ships them.
//!
//! The launcher takes every line that starts with `-` from `jvm-server.options` and from the
//! file of the running Java version, and splits at white space.

/// Options for every Java version. Heap dumps are left out: they would fill the data volume, and a
/// node that is out of memory is restarted.
pub(super) const SERVER: &str = "\
-ea
-da:net.openhft...
-XX:+UseThreadPriorities
-XX:+ExitOnOutOfMemoryError
-Xss256k
-XX:+AlwaysPreTouch
-XX:+UseTLAB
-XX:+ResizeTLAB
-XX:+UseNUMA
-XX:+PerfDisableSharedMem
-Djava.net.preferIPv4Stack=PREFER_IPV4
-Djdk.attach.allowAttachSelf=true
-Dio.netty.tryReflectionSetAccessible=true
";

/// Options of the default collector, used unless the user chose another: the JVM refuses two.
pub(super) const COLLECTOR: &str = "\
-XX:+UseG1GC
-XX:+ParallelRefProcEnabled
-XX:MaxGCPauseMillis=300
-XX:InitiatingHeapOccupancyPercent=70
";

pub(super) const JAVA_11: &str = "\
--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED
--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED
--add-exports=java.base/sun.nio.ch=ALL-UNNAMED
--add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED
--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED
--add-exports=java.rmi/sun.rmi.server=ALL-UNNAMED
--add-exports=java.sql/java.sql=ALL-UNNAMED
--add-opens=java.base/java.lang.module=ALL-UNNAMED
--add-opens=java.base/java.net=ALL-UNNAMED
--add-opens=java.base/jdk.internal.loader=ALL-UNNAMED
--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED
--add-opens=java.base/jdk.internal.reflect=ALL-UNNAMED
--add-opens=java.base/jdk.internal.math=ALL-UNNAMED
--add-opens=java.base/jdk.internal.module=ALL-UNNAMED
--add-opens=java.base/jdk.internal.util.jar=ALL-UNNAMED
--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED
";

/// Options that Java 17 needs beyond those of Java 11.
pub(super) const JAVA_17_MORE: &str = "\
-Djava.security.manager=allow
--add-exports=java.base/java.lang.ref=ALL-UNNAMED
--add-exports=java.base/java.lang.reflect=ALL-UNNAMED
--add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED
--add-opens=java.base/java.io=ALL-UNNAMED
--add-opens=java.base/java.lang=ALL-UNNAMED
--add-opens=java.base/java.lang.reflect=ALL-UNNAMED
--add-opens=java.base/java.nio=ALL-UNNAMED
--add-opens=java.base/java.util=ALL-UNNAMED
--add-opens=java.base/java.util.concurrent=ALL-UNNAMED
--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED
--add-opens=java.base/sun.nio.ch=ALL-UNNAMED
--add-opens=java.rmi/sun.rmi.transport.tcp=ALL-UNNAMED
";

/// Do the user's options choose the garbage collector?
pub fn choose_collector(options: &[String]) -> bool {
    options.iter().any(|option| option.starts_with("-XX:+Use") && option.ends_with("GC"))
}
