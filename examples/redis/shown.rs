//! Redis, as people ask for it with `kubectl navigator`.

use navigator::plugin::ShownDatabase;

use super::kind::{NAMES, RedisNode};

pub(crate) const DATABASE: ShownDatabase = ShownDatabase {
    names: &NAMES,
    shell: &["redis-cli"],
    load: |_| None,
    cleans_up: false,
    lost_with_quorum: None,
    remark: |status| Some(status.part::<RedisNode>()?.role),
};
