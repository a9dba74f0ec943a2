//! What every store promises, as cases that run against each of them.
//!
//! A case panics where a store breaks the promise in its name. Cases tolerate other writers of
//! other keys, so that they may share a store; those of [`compaction`] and [`advance`] need one of their own.
//! Add a case to its file and its name to the list here: every store gets it. The intents are
//! those of upstream's suite (apiserver `storage/testing`).

mod advance;
mod compaction;
mod lists;
mod lives;
mod pages;
mod replays;
mod watches;
mod writes;

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use navigator::apiserver::storage::{
    Key, KeyPrefix, PageRequest, Revision, Storage, StoreEntry, StoreEvent, StorePage, WatchStream,
};
use tokio::time::timeout;

use super::keys::{key, pilots};

macro_rules! conformance {
    ($($group:ident on $etcd:expr => { $($case:ident,)* })*) => {
        mod on_embedded {
            $(mod $group { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let scratch = crate::storage::Scratch::new().await;
                    crate::storage::conformance::$group::$case(&scratch.store).await;
                }
            )* })*
        }
        mod on_etcd {
            $(mod $group { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let etcd = $etcd;
                    let store = crate::storage::connect(etcd.url(), stringify!($case)).await;
                    crate::storage::conformance::$group::$case(&store).await;
                }
            )* })*
        }
        mod on_kubernetes {
            $(mod $group { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let server = crate::storage::kube_apiserver::shared();
                    let store = server.store(stringify!($case)).await;
                    crate::storage::conformance::$group::$case(&store).await;
                }
            )* })*
        }
        /// The cases that run, to be compared with those that are written.
        const RUN: &[(&str, &[&str])] = &[$((stringify!($group), &[$(stringify!($case)),*])),*];
    };
}

conformance! {
    writes on crate::storage::etcd_server::shared() => {
        an_absent_key_reads_as_none,
        a_created_value_reads_back_with_its_revision,
        no_revision_is_zero,
        creating_an_existing_key_fails_and_changes_nothing,
        a_deleted_key_can_be_created_again,
        an_empty_value_is_a_value,
        any_byte_is_kept,
        a_value_of_one_mebibyte_is_kept,
        a_value_of_two_mebibytes_is_too_large,
        an_update_replaces_the_value,
        an_update_with_the_same_value_gets_a_new_revision,
        updating_an_absent_key_is_not_found,
        updating_a_deleted_key_is_not_found,
        a_stale_update_conflicts_and_names_both_revisions,
        an_update_at_any_other_revision_conflicts,
        the_revision_of_an_earlier_life_conflicts,
        a_deleted_key_is_gone,
        deleting_an_absent_key_is_not_found,
        a_stale_delete_conflicts,
        revisions_grow_with_every_write_of_any_key,
        a_failed_write_takes_no_revision_of_the_key,
        of_concurrent_creates_one_wins,
        of_concurrent_updates_one_wins,
        concurrent_writes_of_many_keys_all_succeed,
        concurrent_increments_are_all_counted,
        the_id_stays,
    }
    lists on crate::storage::etcd_server::shared() => {
        a_list_of_nothing_has_a_revision,
        a_list_is_ordered_by_the_bytes_of_the_key,
        a_list_shows_its_own_range_only,
        a_list_carries_values_and_revisions,
        pages_show_everything_once,
        a_full_last_page_has_no_more,
        pages_of_one_list_show_one_moment,
        a_list_goes_on_after_a_key_that_is_gone,
        a_list_at_an_older_revision_shows_the_state_then,
        an_older_entry_carries_its_older_revision,
        a_list_in_the_future_fails,
        the_state_at_revision_zero_is_not_known,
        a_list_of_a_thousand_keys_is_whole,
        a_limit_of_zero_shows_nothing,
        what_is_acknowledged_is_listed,
    }
    watches on crate::storage::etcd_server::shared() => {
        a_watch_sees_creation_update_and_deletion_in_order,
        a_watch_from_an_older_revision_replays_what_came_after,
        a_watch_goes_from_history_to_the_present_without_a_gap,
        a_watch_does_not_repeat_its_start,
        a_watch_sees_its_own_range_only,
        a_deletion_has_a_revision_of_its_own,
        a_second_life_begins_with_a_creation,
        a_failed_write_is_no_event,
        a_watch_in_the_future_fails,
        a_watch_reports_progress_when_other_keys_are_written,
        progress_never_overtakes_an_event,
        watchers_of_one_range_see_the_same,
        a_slow_watcher_holds_up_nobody_and_misses_nothing,
        a_watch_of_concurrent_writers_is_ordered_and_whole,
        a_watch_from_a_list_misses_nothing,
        a_watcher_that_left_harms_nobody,
        an_event_comes_soon_after_the_write,
        large_events_come_whole,
    }
    compaction on crate::storage::etcd_server::Server::start() => {
        a_list_at_a_compacted_revision_fails_and_names_the_oldest,
        a_list_at_the_compaction_itself_works,
        a_watch_from_a_compacted_revision_fails_and_names_the_oldest,
        a_watch_from_the_compaction_itself_works,
        a_running_watch_outlives_compaction,
        compaction_keeps_the_latest_values,
        compaction_does_not_bring_back_the_dead,
        compacting_twice_is_harmless,
        compacting_the_future_fails,
        a_page_that_waited_too_long_is_told,
        everything_can_be_compacted,
    }
    lives on crate::storage::etcd_server::shared() => {
        a_key_lives_many_lives,
        deleting_twice_is_not_found,
        an_update_at_the_revision_of_the_deletion_is_not_found,
        a_deletion_at_the_revision_of_an_earlier_life_conflicts,
        a_second_life_knows_nothing_of_the_first,
        of_concurrent_deletions_one_wins,
        of_an_update_and_a_deletion_at_one_revision_one_wins,
        of_a_creation_and_a_deletion_none_is_lost,
        a_value_grows_and_shrinks,
        a_value_that_is_no_text_is_kept_through_all,
        names_that_differ_in_case_are_two_keys,
        the_longest_names_of_kubernetes_are_kept,
        any_character_that_a_key_may_hold_is_kept,
        the_latest_revision_never_goes_back,
        a_reader_never_sees_an_older_value_again,
        births_and_deaths_are_counted,
    }
    pages on crate::storage::etcd_server::shared() => {
        a_list_of_a_group_shows_all_its_resources,
        a_key_before_the_range_hides_nothing,
        a_page_may_begin_after_a_key_that_never_was,
        a_limit_beyond_the_range_shows_all,
        pages_of_one_object_show_one_moment,
        two_lists_are_paged_side_by_side,
        a_list_at_the_latest_revision_is_that_of_now,
        a_list_of_the_past_stays_as_it_was,
        a_list_shows_the_latest_life_of_a_key,
        what_a_list_shows_can_be_updated_at_its_revision,
        a_list_while_others_write_shows_one_moment,
        large_values_are_listed_whole,
    }
    replays on crate::storage::etcd_server::shared() => {
        a_watch_of_a_group_sees_all_its_resources,
        watchers_of_two_ranges_see_their_own,
        a_watch_from_now_sees_nothing_of_before,
        an_empty_value_comes_in_an_event,
        any_byte_comes_in_an_event,
        an_update_with_the_same_value_is_an_event,
        several_lives_are_replayed_in_order,
        a_watch_from_a_deletion_goes_on_after_it,
        a_watch_from_between_knows_the_values_then,
        history_is_the_same_for_everyone,
        every_watcher_reports_progress,
        a_watcher_that_is_behind_reports_events_before_progress,
    }
    advance on crate::storage::etcd_server::Server::start() => {
        an_advance_leaves_every_revision_behind,
        an_advance_keeps_the_latest_values,
        an_advance_forgets_the_history,
        an_advance_keeps_the_id,
        after_an_advance_a_watch_goes_on_from_there,
        the_oldest_revision_moves_with_each_compaction,
        writes_go_on_after_compaction,
        a_watch_that_reads_history_outlives_compaction_behind_it,
        the_future_can_be_compacted_once_it_came,
    }
}

#[test]
fn every_case_that_is_written_runs() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("tests/it/storage/conformance");
    for (group, run) in RUN {
        let text = std::fs::read_to_string(folder.join(format!("{group}.rs"))).unwrap();
        let written = text.lines().filter_map(|line| line.strip_prefix("pub(crate) async fn "));
        let written: Vec<_> = written.map(|line| line.split('(').next().unwrap()).collect();
        assert_eq!(written, *run, "cases of {group}");
    }
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(files, RUN.len(), "groups of cases");
    let cases: usize = RUN.iter().map(|(_, cases)| cases.len()).sum();
    assert!(cases >= 100, "{cases} cases");
}

/// Far longer than any store needs; a machine under load must not fail a case.
const DEADLINE: Duration = Duration::from_secs(60);

async fn create(store: &dyn Storage, name: &str, value: &str) -> Revision {
    create_in(store, "ns", name, value).await
}

async fn create_in(store: &dyn Storage, namespace: &str, name: &str, value: &str) -> Revision {
    let created = store.create(&key(namespace, name), bytes(value)).await;
    created.expect("the key is absent")
}

/// Creates objects, few enough at a time that a store on a busy machine answers each in time.
/// Returns their revisions, in the order of `keys`.
async fn create_all(store: &dyn Storage, keys: &[Key]) -> Vec<Revision> {
    let created = stream::iter(keys).map(|key| store.create(key, bytes("1"))).buffered(32);
    created.map(|result| result.expect("creates")).collect().await
}

async fn update(store: &dyn Storage, name: &str, expected: Revision, value: &str) -> Revision {
    let updated = store.update(&key("ns", name), expected, bytes(value)).await;
    updated.expect("the revision is the key's")
}

async fn delete(store: &dyn Storage, name: &str, expected: Revision) -> Revision {
    store.delete(&key("ns", name), expected).await.expect("the revision is the key's")
}

async fn list(store: &dyn Storage, request: PageRequest) -> StorePage {
    store.list(&pilots(), request).await.expect("the list can be made")
}

fn bytes(value: &str) -> Bytes {
    Bytes::copy_from_slice(value.as_bytes())
}

/// `name=value` of each entry.
fn shown(entries: &[StoreEntry]) -> Vec<String> {
    let line = |entry: &StoreEntry| {
        let name = entry.key.as_str().rsplit('/').next().unwrap_or_default();
        format!("{name}={}", String::from_utf8_lossy(&entry.value))
    };
    entries.iter().map(line).collect()
}

/// A watch that is read with a deadline.
struct Watch(WatchStream);

impl Watch {
    async fn start(store: &dyn Storage, from: Revision) -> Self {
        Self::of(store, &pilots(), from).await
    }

    async fn of(store: &dyn Storage, prefix: &KeyPrefix, from: Revision) -> Self {
        Self(store.watch(prefix, from).await.expect("the watch can be started"))
    }

    /// The next event that is not progress.
    async fn change(&mut self) -> StoreEvent {
        loop {
            match self.any().await {
                StoreEvent::Progress(_) => {}
                event => return event,
            }
        }
    }

    async fn any(&mut self) -> StoreEvent {
        let next = timeout(DEADLINE, self.0.next()).await.expect("an event comes in time");
        next.expect("the watch goes on").expect("the watch does not fail")
    }

    /// The next change, as `create name=value`, `put name=value` or `delete name`.
    async fn line(&mut self) -> String {
        describe(&self.change().await)
    }
}

fn describe(event: &StoreEvent) -> String {
    let name = |key: &Key| key.as_str().rsplit('/').next().unwrap_or_default().to_owned();
    let text = |value: &Bytes| String::from_utf8_lossy(value).into_owned();
    match event {
        StoreEvent::Put { entry, created } => {
            let verb = if *created { "create" } else { "put" };
            format!("{verb} {}={}", name(&entry.key), text(&entry.value))
        }
        StoreEvent::Delete { key, .. } => format!("delete {}", name(key)),
        StoreEvent::Progress(revision) => format!("progress {revision}"),
    }
}
