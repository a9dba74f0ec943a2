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
        own: &'a OwnLogin,
        former: Option<&'a OwnLogin>,
        users: &'a UsersDocument,
    ) -> Self {
        let former = former.filter(|former| *former != own);
        Self { access, own, former, superuser: users.superuser() }
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
    pub(super) async fn local(&self) -> Option<SocketAddr> {
        self.0.lock().await.as_ref().map(|session| session.client.local())
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
        let Some(own) = users.own() else {
            let why = "the mounted users hold no login of pilots; the controller is older than this \
                       pilot, or somebody changed its Secret: delete the key users.json of it";
            return Err(Error::Refused(why.to_owned()));
        };
        if self.seen().logins.closed {
            let why = "the cluster leaves the ring, and its logins are closed";
            return Err(Error::NotYet(why.to_owned()));
        }
        self.finish_restart().await?;
        if access.founding {
            self.found_logins(&access, node, own).await?;
            let why = "the ring has its first login, and its database starts again to ask for it";
            return Err(Error::NotYet(why.to_owned()));
        }
        let former = self.stored_login().await;
        let entry = Entry::new(&access, own, former.as_ref(), users);
        let copies = self.copies(entry).await?;
        let without_nodes = self.without_nodes(node, entry, copies.as_ref()).await?;
        // Until then the roles of a ring of several datacenters may not be there to be read.
        let unspread = copies.is_none() && !access.asks_passwords;
        let RolePlan { changes, troubles } =
            if unspread { RolePlan::default() } else { self.compare(entry, users).await? };
        let differs = unspread || !changes.is_empty();
        let closed = self.close_outdated(node, &access).await;
        {
            let mut seen = self.seen();
            let known = std::mem::take(&mut seen.logins);
            seen.logins = KnownLogins {
                users: Some(users.clone()),
                differs,
                failed: known.failed.filter(|_| differs),
                copies: copies.or(known.copies),
                without_nodes,
                closed: known.closed,
            };
        }
        if differs {
            let names: Vec<_> = changes.iter().map(|change| change.role.as_str()).collect();
            let failed = self.seen().logins.failed.clone();
            let failed = failed.map(|why| format!(": {why}")).unwrap_or_default();
            let what = if unspread {
                "have the logins kept in each datacenter".to_owned()
            } else {
                format!("change {}", names.join(", "))
            };
            return Err(Error::NotYet(format!("the leading pilot has to {what}{failed}")));
        }
        if !troubles.is_empty() {
            return Err(Error::NotYet(troubles.join("; ")));
        }
        closed?;
        if !access.asks_passwords {
            // From the next start on the node may ask for passwords.
            self.has_copies(node, entry).await?;
            let noted = self.state.glance(|state| state.asks_passwords = true).await?;
            noted.ok_or_else(|| Error::NotYet("the volume is busy".to_owned()))?;
        }
        self.store_login(own).await
    }

    /// Fails where a ring that is to ask for logins has not as many copies of them in the datacenter of
    /// this node as it is to have; it goes by the nodes that this one knows of.
    async fn has_copies(&self, node: &DatabaseNode, entry: Entry<'_>) -> Result<(), Error> {
        let datacenter = datacenter_of(&node.pilot);
        let rows = self.ask(entry, login_copies::elsewhere()).await?;
        let others = rows.iter().filter(|row| row.text("data_center") == Some(&datacenter)).count();
        let wanted = login_copies::for_nodes(others + 1);
        let has = self.seen().logins.copies.as_ref().and_then(|has| has.get(&datacenter).copied());
        let has = has.unwrap_or_default();
        let unsettled = self.state.is_known() && self.state.known().copies_unsettled;
        if has < wanted || unsettled {
            return Err(Error::NotYet(format!(
                "the leading pilot has to have {wanted} copies of the ring's logins kept, of which there are {has}"
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
        own: &OwnLogin,
    ) -> Result<(), Error> {
        if self.state.is_known() && !self.state.known().founding_logins {
            return Ok(());
        }
        let target = access.target(&self.config, self.access.pins(), None)?;
        let mut client = CqlClient::connect(&target).await.map_err(|error| not_yet(&error))?;
        let mut run = async |statement: CqlStatement| {
            client.run(&statement).await.map_err(|error| not_yet(&error))
        };
        let others = login_copies::datacenters(&run(login_copies::elsewhere()).await?);
        let rows = run(login_copies::question()).await?;
        let has = rows.iter().next().and_then(|row| login_copies::read(&row));
        let datacenter = datacenter_of(&node.pilot);
        let copies = match has {
            None => {
                let live = self.seen().live.clone();
                let all = login_copies::everywhere(&datacenter, &others, &live);
                Some(all.map_err(Error::NotYet)?)
            }
            Some(has) if has.contains_key(&datacenter) => None,
            Some(has) => {
                let all: Vec<_> = others.iter().cloned().chain([datacenter.clone()]).collect();
                let without_nodes = login_copies::without_nodes(&has, &datacenter, &all);
                login_copies::next(&has, &Copies::from([(datacenter, 1)]), &without_nodes)
            }
        };
        if let Some(copies) = copies {
            run(login_copies::change(&copies)).await?;
        }
        if !others.is_empty() {
            // A copy that is new has the rows that the ring has, before anybody is judged by it.
            let tables = run(login_copies::tables()).await?;
            for table in tables.iter().filter_map(|row| row.text("table_name")) {
                run(login_copies::read_all(table)).await?;
            }
        }
        let before = roles::rows(&run(roles::question()).await?);
        for statement in roles::first_rows(own, &before, others.is_empty()) {
            run(statement).await?;
        }
        let after = roles::rows(&run(roles::question()).await?);
        if !roles::are_first_rows_there(own, &after, others.is_empty()) {
            return Err(Error::NotYet("the first rows of the ring are not there yet".to_owned()));
        }
        self.store_login(own).await?;
        let noted = self.state.glance(|state| state.founding_logins = false).await?;
        noted.ok_or_else(|| Error::NotYet("the volume is busy".to_owned()))?;
        info!(role = own_name(own), "The ring knows the login of this cluster's pilots");
        Ok(())
    }

    /// Compares the ring with what it is to have, and notes whose password changed. Changes nothing.
    async fn compare(&self, entry: Entry<'_>, users: &UsersDocument) -> Result<RolePlan, Error> {
        let Entry { own, former, .. } = entry;
        let roles = roles::rows(&self.ask(entry, roles::question()).await?);
        let is_declared = |row: &RoleRow| users.users().iter().any(|user| user.name == row.name);
        self.passwords.note(&roles, |row| roles::is_kept(row) || is_declared(row))?;
        let (mut grants, mut version) = (RingGrants::default(), MinorVersion::default());
        if roles::needs_grants(users, own, former, &roles) {
            grants = RingGrants::read(&self.ask(entry, grants::question()).await?);
            let elsewhere = self.ask(entry, login_copies::elsewhere()).await?;
            let here = self.ask(entry, login_copies::here()).await?;
            version = lowest_version([&elsewhere, &here]);
        }
        Ok(roles::plan(users, own, former, &RingRoles { roles, grants, version }))
    }

    /// Returns the datacenters that are to have copies of the logins and have no node.
    async fn without_nodes(
        &self,
        node: &DatabaseNode,
        entry: Entry<'_>,
        copies: Option<&Copies>,
    ) -> Result<BTreeSet<String>, Error> {
        let Some(copies) = copies else { return Ok(BTreeSet::new()) };
        let others = login_copies::datacenters(&self.ask(entry, login_copies::elsewhere()).await?);
        Ok(login_copies::without_nodes(copies, &datacenter_of(&node.pilot), &others))
    }

    async fn copies(&self, entry: Entry<'_>) -> Result<Option<Copies>, Error> {
        let rows = self.ask(entry, login_copies::question()).await?;
        Ok(rows.iter().next().and_then(|row| login_copies::read(&row)))
    }

    /// Asks the node, over the connection of an earlier question where there is one.
    async fn ask(&self, entry: Entry<'_>, statement: CqlStatement) -> Result<CqlRows, Error> {
        let mut session = self.session.0.lock().await;
        // That of a superuser or of the former login is not gone on with: the present login may be there
        // now, and the former one is closed then.
        let is_usable = |known: &OwnSession| known.own.as_ref() == Some(entry.own);
        let mut current = match session.take().filter(is_usable) {
            Some(known) => known,
            None => self.connect(entry).await?,
        };
        // A connection that failed is not used again.
        let answer = current.client.run(&statement).await;
        if answer.as_ref().err().is_none_or(|error| error.code().is_some()) {
            *session = Some(current);
        }
        answer.map_err(|error| not_yet(&error))
    }

    /// Connects with the login that is mounted, or with the one that worked last, or else as a superuser.
    async fn connect(&self, entry: Entry<'_>) -> Result<OwnSession, Error> {
        let Entry { access, own, former, superuser } = entry;
        let pilots = [Some(own), former].into_iter().flatten().map(|own| {
            let login = CqlLogin { name: own_name(own), password: own.password.clone() };
            (login, Some(own.clone()))
        });
        let superusers = superuser.map(|SuperuserLogin { name, password }| {
            (CqlLogin { name: name.clone(), password: password.clone() }, None)
        });
        for (login, own) in pilots.chain(superusers) {
            let target = access.target(&self.config, self.access.pins(), Some(login))?;
            match CqlClient::connect(&target).await {
                Ok(client) => return Ok(OwnSession { client, own }),
                Err(error) if is_unknown(&error) => {}
                Err(error) => return Err(not_yet(&error)),
            }
        }
        let role = own_name(own);
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
            match self.login.glance(|_| ()).await {
                Ok(_) => {}
                Err(error) => warn!(error = %chain(&error), "The stored login cannot be read"),
            }
        }
        self.login.known().own
    }

    async fn store_login(&self, own: &OwnLogin) -> Result<(), Error> {
        if self.login.is_known() && self.login.known().own.as_ref() == Some(own) {
            return Ok(());
        }
        let own = own.clone();
        let stored = self.login.glance(move |login| login.own = Some(own)).await?;
        stored.ok_or_else(|| Error::NotYet("the volume is busy".to_owned()))
    }

    /// Looks whether the leading pilot has something to do for the ring's logins.
    pub(super) fn login_duty(&self, node: &DatabaseNode) -> LeaderDuty {
        // A ring that does not ask for passwords yet is given logins where it is told users.
        let access = self.access.get().filter(|access| !access.founding);
        let asks = access.as_ref().is_some_and(|access| access.asks_passwords);
        let seen = self.seen();
        let KnownLogins { users, differs, failed: _, copies, without_nodes, closed } = &seen.logins;
        let told = node.pilot.spec.security.as_ref().and_then(|told| told.users.as_deref());
        let users =
            users.as_ref().filter(|users| access.is_some() && Some(users.revision()) == told);
        let users = users.filter(|_| !closed);
        let Some(users) = users else {
            return LeaderDuty::None;
        };
        let next = copies.as_ref().and_then(|copies| {
            let wanted = login_copies::wanted(node, copies, &seen.live);
            login_copies::next(copies, &wanted, without_nodes)
        });
        let unsettled = self.state.is_known() && self.state.known().copies_unsettled;
        let is_there = *differs || next.is_some() || unsettled || (!asks && copies.is_none());
        if !is_there || users.own().is_none() {
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
        let Some(users) = self.seen().logins.users.clone() else { return Ok(()) };
        let Some(own) = users.own() else { return Ok(()) };
        let former = self.stored_login().await;
        let entry = Entry::new(&access, own, former.as_ref(), &users);
        let mut copies = self.copies(entry).await?;
        if copies.is_none() && !access.asks_passwords {
            let spread = self.spread_copies(node, entry).await;
            self.seen().logins.failed = spread.as_ref().err().map(ToString::to_string);
            copies = Some(spread?);
        }
        let RolePlan { changes, .. } = self.compare(entry, &users).await?;
        for change in changes {
            let role = change.role.clone();
            if !lead.holds() {
                return Ok(());
            }
            for text in change.statements(access.asks_passwords) {
                let statement = CqlStatement::new(text, super::cql::Consistency::LocalQuorum);
                if let Err(error) = self.ask(entry, statement).await {
                    let why = format!("the role {role} cannot be changed: {error}");
                    self.seen().logins.failed = Some(why.clone());
                    return Err(Error::NotYet(why));
                }
            }
            info!(role, "Changed a role of the ring");
        }
        self.seen().logins.differs = false;
        let live = self.seen().live.clone();
        let wanted = |has: &Copies| login_copies::wanted(node, has, &live);
        // Nodes that ask go by copies that people count in another way.
        let Some(mut has) = copies else { return Ok(()) };
        let without_nodes = self.without_nodes(node, entry, Some(&has)).await?;
        if self.state.known().copies_unsettled {
            self.settle_copies(entry).await?;
        }
        while let Some(next) = login_copies::next(&has, &wanted(&has), &without_nodes) {
            // A raise that nobody finishes is finished by this node, also after a restart.
            let noted = self.state.glance(|state| state.copies_unsettled = true).await?;
            if noted.is_none() || !lead.holds() {
                return Ok(());
            }
            self.ask(entry, login_copies::change(&next)).await?;
            info!(copies = ?next, "Changed how many copies of logins there are");
            self.settle_copies(entry).await?;
            has = next;
            self.seen().logins.copies = Some(has.clone());
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
        let (users, closed) = {
            let seen = self.seen();
            (seen.logins.users.clone(), seen.logins.closed)
        };
        let (Some(access), false) = (access, closed) else { return Ok(()) };
        let Some((users, own)) = users.as_ref().and_then(|users| Some((users, users.own()?)))
        else {
            return Err(Error::NotYet("the users are not known".to_owned()));
        };
        let former = self.stored_login().await;
        let entry = Entry::new(&access, own, former.as_ref(), users);
        // From here on no user is made again.
        self.seen().logins.closed = true;
        let closed = self.close_all(entry, own).await;
        self.seen().logins.closed = closed.is_ok();
        closed
    }

    async fn close_all(&self, entry: Entry<'_>, own: &OwnLogin) -> Result<(), Error> {
        let nobody = UsersDocument::new(Vec::new(), Some(own.clone()));
        let RolePlan { changes, .. } = self.compare(entry, &nobody).await?;
        let texts = changes.into_iter().flat_map(|change| change.statements(true));
        // The connection of this pilot outlives its login.
        for text in texts.chain([roles::close_own(own)]) {
            let statement = CqlStatement::new(text, super::cql::Consistency::LocalQuorum);
            self.ask(entry, statement).await?;
        }
        info!("Closed the logins of this cluster: its last node leaves the ring");
        Ok(())
    }

    /// Has each node keep a copy of logins that nobody has looked after, so that the ones with the rows are
    /// among them. Returns how many there are now.
    async fn spread_copies(&self, node: &DatabaseNode, entry: Entry<'_>) -> Result<Copies, Error> {
        let others = login_copies::datacenters(&self.ask(entry, login_copies::elsewhere()).await?);
        let live = self.seen().live.clone();
        let all = login_copies::everywhere(&datacenter_of(&node.pilot), &others, &live);
        let all = all.map_err(Error::NotYet)?;
        let noted = self.state.glance(|state| state.copies_unsettled = true).await?;
        noted.ok_or_else(|| Error::NotYet("the volume is busy".to_owned()))?;
        self.ask(entry, login_copies::change(&all)).await?;
        info!(copies = ?all, "Each node has a copy of the logins");
        self.settle_copies(entry).await?;
        self.seen().logins.copies = Some(all.clone());
        Ok(all)
    }

    /// Gives each copy of the logins all rows.
    async fn settle_copies(&self, entry: Entry<'_>) -> Result<(), Error> {
        let tables = self.ask(entry, login_copies::tables()).await?;
        for table in tables.iter().filter_map(|row| row.text("table_name").map(str::to_owned)) {
            self.ask(entry, login_copies::read_all(&table)).await?;
        }
        self.state.glance(|state| state.copies_unsettled = false).await?;
        Ok(())
    }

    /// Says what a departure waits for: that logins are read without this node.
    pub(super) async fn login_copies_hold(&self, node: &DatabaseNode) -> Option<String> {
        let access =
            self.access.get().filter(|access| access.asks_passwords && !access.founding)?;
        let users = self.seen().logins.users.clone()?;
        let own = users.own()?;
        let former = self.stored_login().await;
        let entry = Entry::new(&access, own, former.as_ref(), &users);
        // A node whose logins cannot be asked for may leave: waiting would mend nothing.
        let copies = self.copies(entry).await.ok()??;
        self.seen().logins.copies = Some(copies.clone());
        let datacenter = datacenter_of(&node.pilot);
        let live = self.seen().live.clone();
        let wanted = *login_copies::wanted(node, &copies, &live).get(&datacenter)?;
        let has = *copies.get(&datacenter)?;
        let why = "waits until the leading pilot has lowered the copies of logins";
        (has > wanted).then(|| format!("{why} from {has} to {wanted}"))
    }
}

/// Returns the lowest version of nodes, by the answers to [`login_copies::elsewhere`] and
/// [`login_copies::here`].
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
    Error::NotYet(told(&chain(error).to_string()))
}

/// Does the ring not know this name and password? It gives the same code where it could not look, since
/// too few copies of its logins are there (`PasswordAuthenticator` of 4.1 and 5.0).
fn is_unknown(error: &CqlError) -> bool {
    let could_not_look =
        matches!(error, CqlError::Database { message, .. } if message.contains(UNABLE));
    error.code() == BAD_CREDENTIALS && !could_not_look
}

/// A refusal may repeat the statement, and with it a hash.
fn told(text: &str) -> String {
    match text.find("$2a$") {
        Some(_) => "the database refuses a statement that holds a hash".to_owned(),
        None => text.to_owned(),
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
