#!/usr/bin/perl
# A Cassandra for tests: answers as the Jolokia agent does, and keeps an honest ring.
#
# A folder plays the network (SCRIPT_RING, or `ring` beside the data folder):
#   members/ADDRESS  "MODE HOST-ID CLUSTER" of each node that the ring knows
#   up/ADDRESS       locked by the node's process for as long as it lives
#   foundings        a line for each cluster that was begun: "CLUSTER ADDRESS"
#   wrongs           what must never be; a test that finds a line here has failed
#   keyspaces        "NAME FACTOR" of users' keyspaces
# Files beside the data folder make the node misbehave for as long as they are there:
#   switches/slow           nothing answers: the JVM is still on its way
#   switches/deadlock       nothing answers any more; QUIT prints a thread dump, TERM ends it
#   switches/crash          ends by itself, once
#   switches/mute-agent     the agent answers no more; clients are answered
#   switches/deaf           TERM is heard and not followed
#   switches/stuck-drain    a drain does not end
#   switches/stuck-streams  streams of a join or of a decommission stand still
#   switches/fail-join      a join fails, once: the process stays
#   switches/helper         starts another program in a session of its own, and notes its pid
#   switches/no-space       ends at its start, as on a volume without room
#   switches/noise          writes numbered lines without a break, from its start on
#   switches/load           holds how many bytes the node says that it has
# What happens to the node is noted down in `notes` beside the data folder, a word a line.
#
# Simpler than the real one: a process that is stopped by a signal still counts as up.
use strict;
use warnings;
use Fcntl qw(:flock);
use IO::Select;
use IO::Socket::INET;
use Time::HiRes qw(time sleep);

$| = 1;
$SIG{PIPE} = "IGNORE";
my $data = $ENV{cassandra_storagedir};
(my $place = $data) =~ s{/[^/]*$}{};
my $ring = $ENV{SCRIPT_RING} // "$place/ring";
mkdir $_ for $ring, "$ring/members", "$ring/up", "$place/switches", "$data/data/system";

note("start $$");
$SIG{TERM} = sub { note("term"); exit 143 unless switched("deaf") };
$SIG{QUIT} = sub { note("quit"); print "Full thread dump OpenJDK 64-Bit Server VM (scripted)\n" };

noise() if switched("noise");
die_saying("ERROR java.io.IOException: No space left on device") if switched("no-space");

my $yaml = slurp("$ENV{CASSANDRA_CONF}/cassandra.yaml");
my ($own) = $yaml =~ /^listen_address: *['"]?([\d.]+)/m or die "no listen_address";
my ($seeds) = $yaml =~ /seeds: *['"]?([^'"\s]+)/ or die "no seeds";
my @seeds = map { s/:7000$//r } split /,/, $seeds;
my ($host) = slurp("$ENV{CASSANDRA_CONF}/jolokia.properties") =~ /^host=(\S+)/m;
my ($replaces) = "@ARGV" =~ /replace_address_first_boot=(\S+)/;

# Nobody else lives here. A look at whether we are up holds the lock for a moment.
open(my $life, ">>", "$ring/up/$own") or die "up: $!";
my $patience = time + 2;
until (flock($life, LOCK_EX | LOCK_NB)) {
    if (time > $patience) { wrong("two processes at $own"); exit 1 }
    sleep 0.02;
}
sleep 0.02 while switched("slow");
helper() if switched("helper");

# What the node knows of itself is in its system tables.
my $local = "$data/data/system/local";
my ($state, $id, $cluster) = split ' ', slurp($local);
$state //= "";
my $mode = "STARTING";
my ($joined_at, $sending, $answer_when_left) = (0, 0, undef);
if ($state eq "DECOMMISSIONED") {
    # The agent answers as soon as there is a JVM, some seconds before Cassandra has read its tables.
    my $agent = IO::Socket::INET->new(LocalAddr => $host, LocalPort => 8778, Listen => 20, ReuseAddr => 1);
    for (my $until = time + 3; time < $until;) { serve($agent->accept) if IO::Select->new($agent)->can_read(0.1) }
    die_saying("This node was decommissioned and will not rejoin the ring unless "
        . "cassandra.override_decommission=true has been set, or all existing data is removed");
}
if ($state eq "COMPLETED") {
    my ($stranger) = grep { $_->{up} && $_->{cluster} ne $cluster } others();
    wrong("$own and $stranger->{address} are of two clusters") if $stranger;
    become("NORMAL");
} elsif (grep { $_ eq $own } @seeds) {
    found();
} else {
    join_ring();
}

my $server = IO::Socket::INET->new(LocalAddr => $host, LocalPort => 8778, Listen => 20, ReuseAddr => 1)
    or die_saying("failed to bind to: $host:8778 is in use by another process");
my $clients = IO::Socket::INET->new(LocalAddr => $host, LocalPort => 9042, Listen => 20, ReuseAddr => 1)
    or die_saying("failed to bind to: $host:9042 is in use by another process");
print "Listening for clients (scripted)\n";
my $select = IO::Select->new($server, $clients);
my @kept;    # connections that are answered later, or never
while (1) {
    live();
    sleep 0.05 while switched("deadlock");
    for my $ready ($select->can_read(0.1)) {
        my $caller = $ready->accept or next;
        if ($ready == $clients) { answer_client($caller) }
        elsif (switched("mute-agent")) { push @kept, $caller }
        else { serve($caller) }
    }
}

# Beside it, as a database's log is written while it works.
sub noise {
    my $parent = $$;
    defined(my $pid = fork) or die "fork: $!";
    return if $pid;
    $SIG{$_} = "DEFAULT" for qw(TERM QUIT PIPE);
    my $number = 0;
    while (getppid == $parent) { print "line ", $number++, "\n"; sleep 0.001 }
    exit;
}

sub helper {
    defined(my $pid = fork) or die "fork: $!";
    exec "setsid", "sleep", "120" unless $pid;
    note("helper $pid");
}

sub found {
    my ($alive) = grep { $_->{up} && $_->{mode} eq "NORMAL" } others();
    wrong("$own founds while $alive->{address} lives") if $alive;
    ($id, $cluster) = (fresh("id"), fresh("cluster")) unless $cluster;
    save($local, "STARTING $id $cluster");
    append("$ring/foundings", "$cluster $own") if slurp("$ring/foundings") !~ /^\Q$cluster\E /m;
    note("founds");
    become("NORMAL");
}

sub join_ring {
    my $seed;
    my $until = time + 3;
    until ($seed) {
        ($seed) = grep { my $one = $_; $one->{up} && $one->{mode} eq "NORMAL" && grep { $_ eq $one->{address} } @seeds } others();
        die_saying("java.lang.RuntimeException: Unable to gossip with any peers") if !$seed && time > $until;
        sleep 0.05 unless $seed;
    }
    my ($namesake) = grep { $_->{address} eq $own && $_->{mode} ne "LEFT" } members();
    $id = fresh("id") unless $cluster && $cluster eq $seed->{cluster};
    die_saying("A node with address $own already exists, cancelling join. Use cassandra.replace_address")
        if $namesake && $namesake->{id} ne $id && !$replaces;
    unlink "$ring/members/$replaces" if $replaces;
    $cluster = $seed->{cluster};
    save($local, "IN_PROGRESS $id $cluster");
    note("resumes") unless "@ARGV" =~ /reset_bootstrap_progress=true/;
    note("joins");
    become("JOINING");
    $joined_at = time + 0.1;
}

# The ring knows it, and the disk where a restart must know it too.
sub become {
    my ($new) = @_;
    $mode = $new;
    my %disk = (NORMAL => "COMPLETED", DECOMMISSIONED => "DECOMMISSIONED");
    save($local, "$disk{$mode} $id $cluster") if $disk{$mode};
    save("$ring/members/$own", ($mode eq "DECOMMISSIONED" ? "LEFT" : $mode) . " $id $cluster");
    note(lc $mode);
}

# What goes on by itself.
sub live {
    if (switched("crash")) { unlink "$place/switches/crash"; die_saying("the script crashes") }
    return if switched("stuck-streams");
    if ($mode eq "JOINING" && switched("fail-join")) {
        unlink "$place/switches/fail-join";
        $mode = "JOINING_FAILED";    # the ring sees it join
        note("fails");
    }
    become("NORMAL") if $mode eq "JOINING" && time > $joined_at;
    return unless $mode eq "LEAVING";
    $sending += 100;
    return if $sending < 1000;
    become("DECOMMISSIONED");
    reply($answer_when_left, '{"status":200,"value":null}') if $answer_when_left;
    $answer_when_left = undef;
}

sub serve {
    my ($client) = @_;
    return unless $client;
    my $length = 0;
    while (my $line = <$client>) { last if $line =~ /^\r?$/; $length = $1 if $line =~ /^content-length: (\d+)/i }
    my $body = "";
    read($client, $body, $length) if $length;
    if ($body =~ /^\s*\[/) {
        my @asked = substr($body, 1) =~ /(\{(?:[^{}]|(?1))*\})/g;
        return reply($client, "[" . join(",", map { answer($_) } @asked) . "]");
    }
    my ($operation) = $body =~ /"operation":"(\w+)/;
    if (($operation // "") eq "drain") {
        note("drain");
        if (switched("stuck-drain")) { push @kept, $client; return }
        $mode = "DRAINED";
    } elsif (($operation // "") eq "decommission") {
        my $refusal = decommission($body =~ /\[true\]/);
        return reply($client, qq({"status":500,"error":"$refusal"})) if $refusal;
        $answer_when_left = $client;
        return;
    }
    reply($client, '{"status":200,"value":null}');
}

# SUPPORTED to OPTIONS, with no options.
sub answer_client {
    my ($client) = @_;
    read($client, my $asked, 9);
    print $client pack("C5 N n", 0x84, 0, 0, 0, 6, 2, 0);
    close $client;
}

# Says why not; otherwise the answer comes when the node has left.
sub decommission {
    my ($force) = @_;
    return "Node in $mode state; wait for status to become normal" if $mode ne "NORMAL";
    my $remain = grep { $_->{mode} eq "NORMAL" } others();
    my %factors = (keyspaces(), system_distributed => 3);
    for my $keyspace (sort keys %factors) {
        return "Not enough live nodes to maintain replication factor in keyspace $keyspace"
            if $factors{$keyspace} > $remain && !$force;
    }
    wrong("$own leaves and user data with it") if grep { $_ > $remain } values %{{ keyspaces() }};
    $sending = 0;
    become("LEAVING");
    return "";
}

sub answer {
    my ($asked) = @_;
    my ($bean) = $asked =~ /"mbean":"([^"]*)"/;
    my $value = "null";
    my $count = sub { qq({"Count":$_[0]}) };
    if ($asked =~ /NonLocalStrategyKeyspaces/) {
        my %factors = keyspaces();
        $value = qq({"NonLocalStrategyKeyspaces":) . list("system_distributed", sort keys %factors) . "}";
    } elsif ($asked =~ /getKeyspaceReplicationInfo/) {
        my %factors = keyspaces();
        my ($keyspace) = $asked =~ /"arguments":\["([^"]*)"\]/;
        $value = qq("{class=SimpleStrategy, replication_factor=$factors{$keyspace}}");
    } elsif ($asked =~ /getRangeToEndpointMap/) {
        my @replicas = map { $_->{address} } grep { $_->{mode} =~ /NORMAL|LEAVING/ } members();
        $value = qq({"[1, 2]":) . list(@replicas) . "}";
    } elsif ($asked =~ /"operation":"get(Datacenter|Rack)/) {
        $value = $1 eq "Rack" ? '"r"' : '"d"';
    } elsif ($bean =~ /StorageService$/) {
        $value = storage_service();
    } elsif ($bean =~ /StreamManager$/) {
        my $stream = qq({"planId":"p","description":"Unbootstrap","totalTxBytes":1000,"currentTxBytes":$sending});
        $value = qq({"CurrentStreams":[) . ($mode eq "LEAVING" ? $stream : "") . "]}";
    } elsif ($bean =~ /name=Load$/) {
        $value = $count->(slurp("$place/switches/load") || 1000);
    } elsif ($bean =~ /Total(Incoming|Outgoing)Bytes/) {
        $value = $count->($1 eq "Outgoing" ? $sending : 0);
    } elsif ($bean =~ /FailureDetector$/) {
        my $states = join "", map { "/$_->{address}\\n  generation:1\\n  SCHEMA:12:s\\n  DC:8:d\\n" } members();
        $value = qq({"AllEndpointStates":"$states"});
    } elsif ($bean =~ /type=Memory$/) {
        $value = '{"HeapMemoryUsage":{"used":1}}';
    }
    return qq({"status":200,"value":$value});
}

sub storage_service {
    my @all = grep { $_->{mode} =~ /NORMAL|JOINING|LEAVING/ } members();
    my $in = sub { my $want = shift; list(map { $_->{address} } grep { $_->{mode} eq $want } @all) };
    my $ids = join ",", map { qq("$_->{address}":"$_->{id}") } grep { $_->{mode} ne "JOINING" } @all;
    my $serves = $mode =~ /NORMAL|LEAVING/ ? "true" : "false";
    return qq({"OperationMode":"$mode","ReleaseVersion":"5.0.6","LocalHostId":"$id",)
        . qq("EndpointToHostId":{$ids},"LiveNodes":) . list(map { $_->{address} } grep { $_->{up} } @all)
        . qq(,"UnreachableNodes":) . list(map { $_->{address} } grep { !$_->{up} } @all)
        . qq(,"JoiningNodes":) . $in->("JOINING") . qq(,"LeavingNodes":) . $in->("LEAVING")
        . qq(,"MovingNodes":[],"NativeTransportRunning":$serves,"Tokens":["1"]});
}

sub members {
    my @found;
    for my $path (glob "$ring/members/*.*.*.*") {
        next if $path =~ /\.new$/;
        my ($address) = $path =~ m{([^/]+)$};
        my ($mode, $id, $cluster) = split ' ', slurp($path);
        next unless $cluster;
        push @found, { address => $address, mode => $mode, id => $id, cluster => $cluster, up => is_up($address) };
    }
    return @found;
}

sub others { return grep { $_->{address} ne $own } members() }

sub is_up {
    my ($address) = @_;
    return 1 if $address eq $own;
    open(my $file, "<", "$ring/up/$address") or return 0;
    return !flock($file, LOCK_SH | LOCK_NB);
}

sub keyspaces { return split ' ', slurp("$ring/keyspaces") }

sub list { return "[" . join(",", map { qq("$_") } @_) . "]" }

sub reply {
    my ($client, $text) = @_;
    print $client "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        . "Content-Length: " . length($text) . "\r\n\r\n$text";
    close $client;
}

sub switched { return -e "$place/switches/$_[0]" }

sub fresh { return "$_[0]-$$-" . int(time * 1000) }

sub note { append("$place/notes", $_[0]) }

sub wrong { append("$ring/wrongs", $_[0]) }

sub die_saying { note("refuses"); print "$_[0]\n"; exit 1 }

sub slurp {
    open(my $file, "<", $_[0]) or return "";
    local $/;
    return <$file> // "";
}

sub append {
    open(my $file, ">>", $_[0]) or die "$_[0]: $!";
    syswrite($file, "$_[1]\n");
}

sub save {
    my ($path, $text) = @_;
    open(my $file, ">", "$path.new") or die "$path: $!";
    print $file $text;
    close $file;
    rename "$path.new", $path;
}
