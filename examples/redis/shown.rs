//! Redis, as people ask for it with `kubectl navigator`.

use navigator::plugin::{ClientEndpoint, ShownDatabase, console::DatabaseConsole};

use super::kind::{NAMES, PORT, RedisNode};

pub(crate) const DATABASE: ShownDatabase = ShownDatabase {
    names: &NAMES,
    console: DatabaseConsole { open: &["redis-cli"], secured: None },
    client: ClientEndpoint {
        service: |cluster| format!("redis-{cluster}-client"),
        port: PORT,
        schemes: Some(["rediss", "redis"]),
        admin: "admin",
    },
    load: |_| None,
    cleans_up: false,
    lost_with_quorum: None,
    remark: |status| Some(status.part::<RedisNode>()?.role),
};
