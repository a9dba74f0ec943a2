//! Keeps the logins of a ring: rows of `system_auth`, which all its nodes share.
//!
//! A ring begins with a life of its founder in which nobody but its pilot can connect: the pilot
//! writes a role for the pilots, and takes the login away from the role whose password everybody
//! knows. From then on each pilot looks whether the ring has the users that are mounted, and the one
//! that leads writes what differs.

use std::{collections::BTreeSet, fmt, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{
    CassandraDriver,
    access::NodeAccess,
    cql::{CqlClient, CqlError, CqlLogin, CqlRow, CqlRows, CqlStatement},
    grants::{self, RingGrants},
    login_copies::{self, Copies},
    resolved_spec::datacenter_of,
    roles::{self, RingRoles, RolePlan, RoleRow, own_name},
};
use crate::{
    api::validation::{DatabaseVersion, releases::MinorVersion},
    engine::users::{OwnLogin, SuperuserLogin, UsersDocument},
    error::chain,
    pilot::{
        driver::{DatabaseNode, Error, LeaderDuty, LeaderPermit},
        kube::peers::is_decommissioned,
        volume::state_file::StateFile,
    },
};

/// How often a ring is looked at where nothing changed: somebody may have changed a role by hand.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The answer to a wrong name or password.
const BAD_CREDENTIALS: Option<i32> = Some(0x0100);
/// Words of that answer where the ring could not look.
const UNABLE: &str = "Unable to perform authentication";

/// The login of pilots that worked last, beside the data: where its Secret is lost and made anew, the
/// ring still knows this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StoredLogin {
    own: Option<OwnLogin>,
}

impl StateFile for StoredLogin {
    const FILE: &'static str = "login.json";
}

/// What this pilot knows of the ring's logins.
#[derive(Debug, Default)]
pub(super) struct KnownLogins {
    /// The users with which the ring was compared last.
    users: Option<UsersDocument>,
    /// It has others.
    differs: bool,
    /// What went wrong when this pilot, as the leading one, last changed them.
    failed: Option<String>,
    /// How many copies of them there are.
    copies: Option<Copies>,
    /// Datacenters among those of which the ring has no node any more.
    without_nodes: BTreeSet<String>,
    /// This cluster leaves the ring, and its logins are closed.
    closed: bool,
}

/// How this pilot gets in, once the ring has logins.
#[derive(Clone, Copy)]
struct Entry<'a> {
    access: &'a NodeAccess,
    /// The login of this cluster's pilots.
    own: &'a OwnLogin,
    /// The one that they had before.
    former: Option<&'a OwnLogin>,
    /// A superuser of the ring's, where it knows neither yet.
    superuser: Option<&'a SuperuserLogin>,
}

impl<'a> Entry<'a> {
    fn new(
        access: &'a NodeAccess,
        own_login: &'a OwnLogin,
        former_login: Option<&'a OwnLogin>,
        users: &'a UsersDocument,
    ) -> Self {
        let former_login = former_login.filter(|login| *login != own_login);
        Self { access, own: own_login, former: former_login, superuser: users.superuser() }
    }
}

/// A connection of this pilot's own.
struct OwnSession {
    client: CqlClient,
    /// The login of pilots that it was made with; `None`: a superuser's.
    own: Option<OwnLogin>,
}

/// The connection that is kept from one question to the next: a login costs Cassandra much.
#[derive(Default)]
pub(super) struct OwnSessions(tokio::sync::Mutex<Option<OwnSession>>);

impl OwnSessions {
    pub(super) async fn close(&self) {
        self.0.lock().await.take();
    }

    /// This pilot's end of the connection that is kept, if there is one.
    pub(super) async fn local_address(&self) -> Option<SocketAddr> {
        self.0.lock().await.as_ref().map(|session| session.client.local_address())
    }
}

impl fmt::Debug for OwnSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnSessions").finish_non_exhaustive()
    }
}

impl CassandraDriver {
    /// Makes the logins of a ring that begins, or compares those of a ring that runs with `users`.
    pub(super) async fn take_users(
        &self,
        node: &DatabaseNode,
        users: &UsersDocument,
    ) -> Result<(), Error> {
        let Some(access) = self.access.get() else {
            return Err(Error::NotYet(
                "whether the node asks for passwords is not known".to_owned(),
            ));
        };
        let Some(own_login) = users.pilot_user() else {
            let message = "the mounted users hold no login of pilots; the controller is older than this \
                       pilot, or somebody changed its Secret: delete the key users.json of it";
            return Err(Error::Refused(message.to_owned()));
        };
        if self.driver_state().logins.closed {
            let message = "the cluster leaves the ring, and its logins are closed";
            return Err(Error::NotYet(message.to_owned()));
        }
        self.finish_restart().await?;
        if access.founding {
            self.found_logins(&access, node, own_login).await?;
            let message =
                "the ring has its first login, and its database starts again to ask for it";
            return Err(Error::NotYet(message.to_owned()));
        }
        let former_login = self.stored_login().await;
        let entry = Entry::new(&access, own_login, former_login.as_ref(), users);
        let copies = self.read_copies(entry).await?;
        let without_nodes = self.without_nodes(node, entry, copies.as_ref()).await?;
        // Until then the roles of a ring of several datacenters may not be there to be read.
        let is_unspread = copies.is_none() && !access.asks_passwords;
        let RolePlan { changes, troubles } = if is_unspread {
            RolePlan::default()
        } else {
            self.compare_roles(entry, users).await?
        };
        let needs_change = is_unspread || !changes.is_empty();
        let close_result = self.close_outdated(node, &access).await;
        {
            let mut state = self.driver_state();
            let old_logins = std::mem::take(&mut state.logins);
            state.logins = KnownLogins {
                users: Some(users.clone()),
                differs: needs_change,
                failed: old_logins.failed.filter(|_| needs_change),
                copies: copies.or(old_logins.copies),
                without_nodes,
                closed: old_logins.closed,
            };
        }
        if needs_change {
            let names: Vec<_> = changes.iter().map(|change| change.role.as_str()).collect();
            let failure = self.driver_state().logins.failed.clone();
            let failure = failure.map(|message| format!(": {message}")).unwrap_or_default();
            let action = if is_unspread {
                "have the logins kept in each datacenter".to_owned()
            } else {
                format!("change {}", names.join(", "))
            };
            return Err(Error::NotYet(format!("the leading pilot has to {action}{failure}")));
        }
        if !troubles.is_empty() {
            return Err(Error::NotYet(troubles.join("; ")));
        }
        close_result?;
        if !access.asks_passwords {
            // From the next start on the node may ask for passwords.
            self.check_copies(node, entry).await?;
            let update = self.state.try_change(|state| state.asks_passwords = true).await?;
            update.ok_or_else(|| Error::NotYet("the volume is busy".to_owned()))?;
        }
        self.store_login(own_login).await
    }

    /// Fails where a ring that is to ask for logins has not as many copies of them in the datacenter of
    /// this node as it is to have; it goes by the nodes that this one knows of.
    async fn check_copies(&self, node: &DatabaseNode, entry: Entry<'_>) -> Result<(), Error> {
        let datacenter = datacenter_of(&node.pilot);
        let rows = self.query(entry, login_copies::peers_statement()).await?;
        let others = rows.iter().filter(|row| row.text("data_center") == Some(&datacenter)).count();
        let desired_count = login_copies::copies_for_nodes(others + 1);
        let existing_count = self
            .driver_state()
            .logins
            .copies
            .as_ref()
            .and_then(|copies| copies.get(&datacenter).copied());
        let existing_count = existing_count.unwrap_or_default();
        let is_unsettled = self.state.is_known() && self.state.cached_state().copies_unsettled;
        if existing_count < desired_count || is_unsettled {
            return Err(Error::NotYet(format!(
                "the leading pilot has to have {desired_count} copies of the ring's logins kept, of which there are {existing_count}"
            )));
        }
        Ok(())
    }

    /// Writes the first rows of a ring that nobody can log in to yet, or the login of this cluster's
    /// pilots into a ring that others have made: nobody else can connect to this node meanwhile.
    async fn found_logins(
        &self,
        access: &NodeAccess,
        node: &DatabaseNode,
        own_login: &OwnLogin,
    ) -> Result<(), Error> {
        if self.state.is_known() && !self.state.cached_state().founding_logins {
            return Ok(());
        }
        let target = access.cql_target(&self.config, self.access.pinned_leaves(), None)?;
        let mut client = CqlClient::connect(&target).await.map_err(|error| not_yet(&error))?;
        let mut run = async |statement: CqlStatement| {
            client.run_statement(&statement).await.map_err(|error| not_yet(&error))
        };
        let others = login_copies::parse_datacenters(&run(login_copies::peers_statement()).await?);
        let rows = run(login_copies::replication_statement()).await?;
        let existing = rows.iter().next().and_then(|row| login_copies::parse_replication(&row));
        let datacenter = datacenter_of(&node.pilot);
        let copies = match existing {
            None => {
                let live = self.driver_state().live.clone();
                let all_copies = login_copies::copies_on_all_nodes(&datacenter, &others, &live);
                Some(all_copies.map_err(Error::NotYet)?)
            }
            Some(existing) if existing.contains_key(&datacenter) => None,
            Some(existing) => {
                let datacenters: Vec<_> =
                    others.iter().cloned().chain([datacenter.clone()]).collect();
                let without_nodes =
                    login_copies::without_nodes(&existing, &datacenter, &datacenters);
                login_copies::next_copies(
                    &existing,
                    &Copies::from([(datacenter, 1)]),
                    &without_nodes,
                )
            }
        };
        if let Some(copies) = copies {
            run(login_copies::alter_statement(&copies)).await?;
        }
        if !others.is_empty() {
            // A copy that is new has the rows that the ring has, before anybody is judged by it.
            let tables = run(login_copies::tables_statement()).await?;
            for table in tables.iter().filter_map(|row| row.text("table_name")) {
                run(login_copies::read_all(table)).await?;
            }
        }
        let old_rows = roles::parse_rows(&run(roles::roles_statement()).await?);
        for statement in roles::first_rows(own_login, &old_rows, others.is_empty()) {
            run(statement).await?;
        }
        let new_rows = roles::parse_rows(&run(roles::roles_statement()).await?);
        if !roles::are_first_rows_there(own_login, &new_rows, others.is_empty()) {
            return Err(Error::NotYet("the first rows of the ring are not there yet".to_owned()));
        }
        self.store_login(own_login).await?;
        let update = self.state.try_change(|state| state.founding_logins = false).await?;
        update.ok_or_else(|| Error::NotYet("the volume is busy".to_owned()))?;
        info!(role = own_name(own_login), "The ring knows the login of this cluster's pilots");
        Ok(())
    }

    /// Compares the ring with what it is to have, and notes whose password changed. Changes nothing.
    async fn compare_roles(
        &self,
        entry: Entry<'_>,
        users: &UsersDocument,
    ) -> Result<RolePlan, Error> {
        let Entry { own: own_login, former: former_login, .. } = entry;
        let roles = roles::parse_rows(&self.query(entry, roles::roles_statement()).await?);
        let is_declared = |row: &RoleRow| users.users().iter().any(|user| user.name == row.name);
        self.passwords.record_rows(&roles, |row| roles::is_kept(row) || is_declared(row))?;
        let (mut grants, mut version) = (RingGrants::default(), MinorVersion::default());
        if roles::needs_grants(users, own_login, former_login, &roles) {
            grants = RingGrants::from_rows(&self.query(entry, grants::grants_statement()).await?);
            let peer_rows = self.query(entry, login_copies::peers_statement()).await?;
            let local_rows = self.query(entry, login_copies::local_statement()).await?;
            version = lowest_version([&peer_rows, &local_rows]);
        }
        Ok(roles::plan_roles(users, own_login, former_login, &RingRoles { roles, grants, version }))
    }

    /// Returns the datacenters that are to have copies of the logins and have no node.
    async fn without_nodes(
        &self,
        node: &DatabaseNode,
        entry: Entry<'_>,
        copies: Option<&Copies>,
    ) -> Result<BTreeSet<String>, Error> {
        let Some(copies) = copies else { return Ok(BTreeSet::new()) };
        let others = login_copies::parse_datacenters(
            &self.query(entry, login_copies::peers_statement()).await?,
        );
        Ok(login_copies::without_nodes(copies, &datacenter_of(&node.pilot), &others))
    }

    async fn read_copies(&self, entry: Entry<'_>) -> Result<Option<Copies>, Error> {
        let rows = self.query(entry, login_copies::replication_statement()).await?;
        Ok(rows.iter().next().and_then(|row| login_copies::parse_replication(&row)))
    }

    /// Asks the node, over the connection of an earlier question where there is one.
    async fn query(&self, entry: Entry<'_>, statement: CqlStatement) -> Result<CqlRows, Error> {
        let mut session = self.session.0.lock().await;
        // That of a superuser or of the former login is not gone on with: the present login may be there
        // now, and the former one is closed then.
        let is_usable = |existing: &OwnSession| existing.own.as_ref() == Some(entry.own);
        let mut current = match session.take().filter(is_usable) {
            Some(existing) => existing,
            None => self.open_session(entry).await?,
        };
        // A connection that failed is not used again.
        let answer = current.client.run_statement(&statement).await;
        if answer.as_ref().err().is_none_or(|error| error.code().is_some()) {
            *session = Some(current);
        }
        answer.map_err(|error| not_yet(&error))
    }

    /// Connects with the login that is mounted, or with the one that worked last, or else as a superuser.
    async fn open_session(&self, entry: Entry<'_>) -> Result<OwnSession, Error> {
        let Entry { access, own: own_login, former: former_login, superuser } = entry;
        let pilots = [Some(own_login), former_login].into_iter().flatten().map(|pilot_login| {
            let login =
                CqlLogin { name: own_name(pilot_login), password: pilot_login.password.clone() };
            (login, Some(pilot_login.clone()))
        });
        let superusers = superuser.map(|SuperuserLogin { name, password }| {
            (CqlLogin { name: name.clone(), password: password.clone() }, None)
        });
        for (login, pilot_login) in pilots.chain(superusers) {
            let target =
                access.cql_target(&self.config, self.access.pinned_leaves(), Some(login))?;
            match CqlClient::connect(&target).await {
                Ok(client) => return Ok(OwnSession { client, own: pilot_login }),
                Err(error) if is_unknown(&error) => {}
                Err(error) => return Err(not_yet(&error)),
            }
        }
        let role = own_name(own_login);
        let superuser = superuser.map(|SuperuserLogin { name, .. }| {
            format!(
                ", nor that of {name}: put a superuser of the ring into the administrator's Secret"
            )
        });
        let otherwise = superuser.as_ref().map_or("", |_| ", or");
        Err(Error::Refused(format!(
            "the ring does not take the login of its pilots{}{otherwise}: as a superuser, make the role \
             {role} WITH LOGIN = true AND SUPERUSER = true and the password that users.json of the \
             pilots' Secret holds under own",
            superuser.unwrap_or_default()
        )))
    }

    async fn stored_login(&self) -> Option<OwnLogin> {
        if !self.login.is_known() {
            match self.login.try_change(|_| ()).await {
                Ok(_) => {}
                Err(error) => warn!(error = %chain(&error), "The stored login cannot be read"),
            }
        }
        self.login.cached_state().own
    }

    async fn store_login(&self, own_login: &OwnLogin) -> Result<(), Error> {
        if self.login.is_known() && self.login.cached_state().own.as_ref() == Some(own_login) {
            return Ok(());
        }
        let own_login = own_login.clone();
        let update = self.login.try_change(move |login| login.own = Some(own_login)).await?;
        update.ok_or_else(|| Error::NotYet("the volume is busy".to_owned()))
    }

    /// Looks whether the leading pilot has something to do for the ring's logins.
    pub(super) fn login_duty(&self, node: &DatabaseNode) -> LeaderDuty {
        // A ring that does not ask for passwords yet is given logins where it is told users.
        let access = self.access.get().filter(|access| !access.founding);
        let requires_password = access.as_ref().is_some_and(|access| access.asks_passwords);
        let state = self.driver_state();
        let KnownLogins { users, differs, failed: _, copies, without_nodes, closed } =
            &state.logins;
        let users_revision =
            node.pilot.spec.security.as_ref().and_then(|security| security.users.as_deref());
        let users = users
            .as_ref()
            .filter(|users| access.is_some() && Some(users.revision()) == users_revision);
        let users = users.filter(|_| !closed);
        let Some(users) = users else {
            return LeaderDuty::None;
        };
        let next_copies = copies.as_ref().and_then(|copies| {
            let desired_copies = login_copies::desired_copies(node, copies, &state.live);
            login_copies::next_copies(copies, &desired_copies, without_nodes)
        });
        let is_unsettled = self.state.is_known() && self.state.cached_state().copies_unsettled;
        let has_duty = *differs
            || next_copies.is_some()
            || is_unsettled
            || (!requires_password && copies.is_none());
        if !has_duty || users.pilot_user().is_none() {
            LeaderDuty::None
        } else if login_copies::is_to_leave(&node.pilot) {
            // The others may learn of that minutes later.
            LeaderDuty::Departure
        } else {
            LeaderDuty::Cluster
        }
    }

    /// Writes what differs in the ring, and has as many copies of it kept as are wanted.
    pub(super) async fn keep_logins(
        &self,
        node: &DatabaseNode,
        lead: &LeaderPermit,
    ) -> Result<(), Error> {
        if self.login_duty(node) == LeaderDuty::None {
            return Ok(());
        }
        let Some(access) = self.access.get() else { return Ok(()) };
        let Some(users) = self.driver_state().logins.users.clone() else { return Ok(()) };
        let Some(own_login) = users.pilot_user() else { return Ok(()) };
        let former_login = self.stored_login().await;
        let entry = Entry::new(&access, own_login, former_login.as_ref(), &users);
        let mut copies = self.read_copies(entry).await?;
        if copies.is_none() && !access.asks_passwords {
            let spread_result = self.spread_copies(node, entry).await;
            self.driver_state().logins.failed =
                spread_result.as_ref().err().map(ToString::to_string);
            copies = Some(spread_result?);
        }
        let RolePlan { changes, .. } = self.compare_roles(entry, &users).await?;
        for change in changes {
            let role = change.role.clone();
            if !lead.is_held() {
                return Ok(());
            }
            for text in change.statements(access.asks_passwords) {
                let statement = CqlStatement::new(text, super::cql::Consistency::LocalQuorum);
                if let Err(error) = self.query(entry, statement).await {
                    let message = format!("the role {role} cannot be changed: {error}");
                    self.driver_state().logins.failed = Some(message.clone());
                    return Err(Error::NotYet(message));
                }
            }
            info!(role, "Changed a role of the ring");
        }
        self.driver_state().logins.differs = false;
        let live = self.driver_state().live.clone();
        let desired_copies =
            |existing: &Copies| login_copies::desired_copies(node, existing, &live);
        // Nodes that ask go by copies that people count in another way.
        let Some(mut existing) = copies else { return Ok(()) };
        let without_nodes = self.without_nodes(node, entry, Some(&existing)).await?;
        if self.state.cached_state().copies_unsettled {
            self.settle_copies(entry).await?;
        }
        while let Some(next_copies) =
            login_copies::next_copies(&existing, &desired_copies(&existing), &without_nodes)
        {
            // A raise that nobody finishes is finished by this node, also after a restart.
            let update = self.state.try_change(|state| state.copies_unsettled = true).await?;
            if update.is_none() || !lead.is_held() {
                return Ok(());
            }
            self.query(entry, login_copies::alter_statement(&next_copies)).await?;
            info!(copies = ?next_copies, "Changed how many copies of logins there are");
            self.settle_copies(entry).await?;
            existing = next_copies;
            self.driver_state().logins.copies = Some(existing.clone());
        }
        Ok(())
    }

    /// Closes the logins of this cluster, when the node is the last of it that leaves a ring which other
    /// clusters share. Nobody could close them afterwards but a person who knows of them.
    pub(super) async fn close_logins(&self, node: &DatabaseNode) -> Result<(), Error> {
        let security = node.pilot.spec.security.as_ref();
        let is_last = security.is_some_and(|security| security.closes_logins)
            && node.peers.iter().all(is_decommissioned);
        let access = self.access.get().filter(|access| is_last && access.asks_passwords);
        let (users, is_closed) = {
            let state = self.driver_state();
            (state.logins.users.clone(), state.logins.closed)
        };
        let (Some(access), false) = (access, is_closed) else { return Ok(()) };
        let Some((users, own_login)) =
            users.as_ref().and_then(|users| Some((users, users.pilot_user()?)))
        else {
            return Err(Error::NotYet("the users are not known".to_owned()));
        };
        let former_login = self.stored_login().await;
        let entry = Entry::new(&access, own_login, former_login.as_ref(), users);
        // From here on no user is made again.
        self.driver_state().logins.closed = true;
        let close_result = self.close_all(entry, own_login).await;
        self.driver_state().logins.closed = close_result.is_ok();
        close_result
    }

    async fn close_all(&self, entry: Entry<'_>, own_login: &OwnLogin) -> Result<(), Error> {
        let no_users = UsersDocument::new(Vec::new(), Some(own_login.clone()));
        let RolePlan { changes, .. } = self.compare_roles(entry, &no_users).await?;
        let texts = changes.into_iter().flat_map(|change| change.statements(true));
        // The connection of this pilot outlives its login.
        for text in texts.chain([roles::close_own(own_login)]) {
            let statement = CqlStatement::new(text, super::cql::Consistency::LocalQuorum);
            self.query(entry, statement).await?;
        }
        info!("Closed the logins of this cluster: its last node leaves the ring");
        Ok(())
    }

    /// Has each node keep a copy of logins that nobody has looked after, so that the ones with the rows are
    /// among them. Returns how many there are now.
    async fn spread_copies(&self, node: &DatabaseNode, entry: Entry<'_>) -> Result<Copies, Error> {
        let others = login_copies::parse_datacenters(
            &self.query(entry, login_copies::peers_statement()).await?,
        );
        let live = self.driver_state().live.clone();
        let copies = login_copies::copies_on_all_nodes(&datacenter_of(&node.pilot), &others, &live);
        let copies = copies.map_err(Error::NotYet)?;
        let update = self.state.try_change(|state| state.copies_unsettled = true).await?;
        update.ok_or_else(|| Error::NotYet("the volume is busy".to_owned()))?;
        self.query(entry, login_copies::alter_statement(&copies)).await?;
        info!(copies = ?copies, "Each node has a copy of the logins");
        self.settle_copies(entry).await?;
        self.driver_state().logins.copies = Some(copies.clone());
        Ok(copies)
    }

    /// Gives each copy of the logins all rows.
    async fn settle_copies(&self, entry: Entry<'_>) -> Result<(), Error> {
        let tables = self.query(entry, login_copies::tables_statement()).await?;
        for table in tables.iter().filter_map(|row| row.text("table_name").map(str::to_owned)) {
            self.query(entry, login_copies::read_all(&table)).await?;
        }
        self.state.try_change(|state| state.copies_unsettled = false).await?;
        Ok(())
    }

    /// Says what a departure waits for: that logins are read without this node.
    pub(super) async fn login_copies_hold(&self, node: &DatabaseNode) -> Option<String> {
        let access =
            self.access.get().filter(|access| access.asks_passwords && !access.founding)?;
        let users = self.driver_state().logins.users.clone()?;
        let own_login = users.pilot_user()?;
        let former_login = self.stored_login().await;
        let entry = Entry::new(&access, own_login, former_login.as_ref(), &users);
        // A node whose logins cannot be asked for may leave: waiting would mend nothing.
        let copies = self.read_copies(entry).await.ok()??;
        self.driver_state().logins.copies = Some(copies.clone());
        let datacenter = datacenter_of(&node.pilot);
        let live = self.driver_state().live.clone();
        let desired_count = *login_copies::desired_copies(node, &copies, &live).get(&datacenter)?;
        let existing_count = *copies.get(&datacenter)?;
        let message = "waits until the leading pilot has lowered the copies of logins";
        (existing_count > desired_count)
            .then(|| format!("{message} from {existing_count} to {desired_count}"))
    }
}

/// Returns the lowest version of nodes, by the answers to [`login_copies::peers_statement`] and
/// [`login_copies::local_statement`].
fn lowest_version(answers: [&CqlRows; 2]) -> MinorVersion {
    let texts = answers.into_iter().flat_map(CqlRows::iter);
    let version = |row: CqlRow<'_>| {
        DatabaseVersion::parse(row.text("release_version")?).map(|v| (v.major, v.minor))
    };
    // A node that does not say it yet knows the words that all know.
    texts.map(|row| version(row).unwrap_or_default()).min().unwrap_or_default()
}

/// What a statement without an answer or with a refusal means: it is tried again.
fn not_yet(error: &CqlError) -> Error {
    Error::NotYet(redact_password_hash(&chain(error).to_string()))
}

/// Does the ring not know this name and password? It gives the same code where it could not look, since
/// too few copies of its logins are there (`PasswordAuthenticator` of 4.1 and 5.0).
fn is_unknown(error: &CqlError) -> bool {
    let is_lookup_failed =
        matches!(error, CqlError::Database { message, .. } if message.contains(UNABLE));
    error.code() == BAD_CREDENTIALS && !is_lookup_failed
}

/// A refusal may repeat the statement, and with it a hash.
fn redact_password_hash(message: &str) -> String {
    match message.find("$2a$") {
        Some(_) => "the database refuses a statement that holds a hash".to_owned(),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_repeats_a_hash_is_not_repeated() {
        let message = "line 1:40 no viable alternative (...PASSWORD = ['$2a$10$N9qo8uLO]...)";
        let error = CqlError::Database { code: 0x2000, message: message.to_owned() };
        assert!(!not_yet(&error).to_string().contains("2a$"));
        let error = CqlError::Database { code: 0x2200, message: "x doesn't exist".to_owned() };
        assert!(not_yet(&error).to_string().contains("x doesn't exist"));
    }

    #[test]
    fn a_ring_that_cannot_look_does_not_refuse_a_login() {
        let answer = |code, message: &str| CqlError::Database { code, message: message.to_owned() };
        let wrong = "Provided username navigator_a and/or password are incorrect";
        assert!(is_unknown(&answer(0x0100, wrong)));
        let away =
            "Unable to perform authentication: Cannot achieve consistency level LOCAL_QUORUM";
        assert!(!is_unknown(&answer(0x0100, away)));
        assert!(!is_unknown(&answer(0x1001, "overloaded")));
    }
}
