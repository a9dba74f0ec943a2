#!/usr/bin/perl
# A Redis that knows what its pilot asks of it and no more: a node that follows nobody until it is
# made the primary. It writes to its output what it is told to, notes signals down, and falls silent
# on demand. Its switches and notes are files in the folder that holds its `home`:
#   notes      a line for its start and for each signal
#   say        the bytes that it writes to its output on USR1
#   mute       while it is there, no request is answered
#   stubborn   while it is there, TERM ends nothing; an INT after it ends with 1, as in a real one
# It has no handler for QUIT, as many a program, and so ends by it.
use strict;
use warnings;
use FindBin;
use IO::Handle;
use IO::Socket::INET;

my $place = "$FindBin::Bin/../..";
open(my $notes, ">>", "$place/notes") or die "notes: $!";
$notes->autoflush;
sub note { print $notes "$_[0]\n" }

$SIG{PIPE} = "IGNORE";
$SIG{CONT} = sub { note("cont") };
$SIG{INT} = sub { note("int"); exit 1 };
$SIG{TERM} = sub { note("term"); exit 0 unless -e "$place/stubborn" };
$SIG{USR1} = sub {
    open(my $file, "<:raw", "$place/say") or die "say: $!";
    local $/;
    my $words = <$file>;
    substr($words, 0, syswrite(STDOUT, $words) // 0) = "" while length $words;
    note("said");
};

# The last of several lines for a setting counts.
my %set = ("cluster-announce-hostname" => "", maxmemory => 0, "min-replicas-to-write" => 0);
open(my $conf, "<", $ARGV[0]) or die "$ARGV[0]: $!";
while (<$conf>) { $set{$1} = $2 if /^(\S+) ['"]?(.*?)['"]?$/ }
# A volume without data would be one that lost them.
open(my $data, ">>", "$set{dir}/appendonly.aof") or die "$set{dir}: $!";
my ($master, $record) = (0, undef);

my $server = IO::Socket::INET->new(
    LocalAddr => $set{bind}, LocalPort => $set{port}, Listen => 16, ReuseAddr => 1,
) or die "listens nowhere: $!";
note("start");
while (1) {
    # A signal interrupts this.
    my $client = $server->accept or next;
    next if -e "$place/mute";
    binmode($client);
    $client->autoflush;
    while (my @words = command($client)) { print $client answer(@words) }
}

# The words of the next command; none at the end.
sub command {
    my ($client) = @_;
    my ($count) = (<$client> // "") =~ /^\*(\d+)/ or return;
    my @words;
    for (1 .. $count) {
        my ($length) = (<$client> // "") =~ /^\$(\d+)/ or return;
        read($client, my $word, $length + 2) or return;
        push @words, substr($word, 0, $length);
    }
    return @words;
}

sub bulk { my ($text) = @_; return "\$" . length($text) . "\r\n$text\r\n" }

sub answer {
    my ($verb, @words) = @_;
    return bulk(info()) if $verb eq "INFO";
    return $record ? bulk($record) : "-ERR Function not found\r\n" if $verb eq "FCALL_RO";
    if ($verb eq "CONFIG" && shift @words eq "GET") {
        my @all = map { bulk($_) . bulk($set{$_} // "") } @words;
        return "*" . 2 * @all . "\r\n@{[join '', @all]}";
    }
    if ($verb eq "CONFIG") { my %new = @words; @set{keys %new} = values %new }
    if ($verb eq "REPLICAOF") { $master = "@words" eq "NO ONE" }
    if ($verb eq "FUNCTION") { ($record) = $words[-1] =~ /return '(.*?)' end/ }
    return "+OK\r\n";
}

sub info {
    my $role = $master ? "role:master\r\nmaster_repl_offset:1\r\n"
        : "role:slave\r\nmaster_host:$set{bind}\r\nmaster_port:1\r\nslave_repl_offset:1\r\n";
    return "# Server\r\nredis_version:7.0.15\r\n# Replication\r\n$role";
}
