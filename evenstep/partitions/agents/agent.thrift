// The agents of Evenstep: each has the partition of one worker, and they hand samples to each other.
//
// Version 1. Messages are Thrift's binary protocol (strict) in framed transport, over TCP or TLS. A
// frame to an agent has at most 16 KiB before `hello`, and 20 MiB after it; one from it, at most 4 MiB.
//
// A connection begins with `hello`. One call at a time on a connection. Agents call each other, and
// a manager calls all of them; no agent calls a manager, which collects what there is for it.
//
// What is said is in evenstep/partitions/handover/protocol.py; here is how it looks on the wire. Messages may
// be lost, repeated and overtaken. An answer to `deliver` means that what it asks for is durable; it
// is given as late as the bandwidth of the receiver wants it, and the next message waits for it.
//
// Fields are only ever added, as optional ones; a change of the meaning of an old one gets a new
// VERSION. Unknown fields are passed over, on both sides, which know a range of versions: they use the
// newest that both know.

namespace py evenstep_agent
namespace cpp evenstep.agent
namespace java evenstep.agent
namespace go evenstep_agent

const i32 VERSION = 1

enum Problem {
  INVALID = 1,  // an argument breaks its rule
  VERSION = 2,  // the agent knows no version that the caller knows
  TOKEN = 3,    // the token is wrong, or there is none
  DAMAGED = 4,  // what came does not fit its checksum: send it again
  CHANGED = 5   // the partition is not the one that was asked about any more: ask again
}

exception Refused {
  1: Problem problem,
  2: string message  // what, which, the rule, and what came
}

// The reply to `hello`. Agents from before it reply with nothing, and know version 1 alone.
struct Greeting {
  1: i32 version,             // the version of this connection: the newest that both sides know
  2: optional string software // the name and version of the agent, for messages
}

// A struct in Thrift's binary protocol, and its CRC-32: TCP's own checksum lets one damaged packet
// in some millions through, and a hand-over must not depend on luck.
struct Sealed {
  1: binary content,
  2: i64 crc
}

// Samples are 64-bit integers, little end first, one after the other.

// Manager to giver.
struct Begin {
  1: string hand_over,
  2: string receiver,
  3: binary samples,
  4: i32 chunk_size
}
struct Commit { 1: string hand_over }
struct Cancel { 1: string hand_over, 2: string reason }

// Giver to manager.
struct Ready { 1: string hand_over }
struct Done { 1: string hand_over }
struct Failed { 1: string hand_over, 2: string reason }

// Giver to receiver.
struct Offer {
  1: string hand_over,
  2: binary samples,
  3: i32 chunk_size,
  4: string layout
}
struct Chunk {
  1: string hand_over,
  2: i32 number,
  3: binary payload,   // rows, as in a block on disk
  4: string checksum   // SHA-256 over "<hand_over> <number>\n" and the payload, in hexadecimal
}
struct Given { 1: string hand_over }
struct Withdrawn { 1: string hand_over, 2: string reason }

// Receiver to giver.
struct Wanted { 1: string hand_over, 2: list<i32> numbers }
struct Staged { 1: string hand_over }
struct Refusal { 1: string hand_over, 2: string reason }
struct Adopted { 1: string hand_over }

// A message on its way; exactly one of the fields after `to` is set. A manager is "@manager".
struct Envelope {
  1: string sender,
  2: string to,
  10: optional Begin beginning,
  11: optional Commit commit,
  12: optional Cancel cancel,
  20: optional Ready ready,
  21: optional Done done,
  22: optional Failed failed,
  30: optional Offer offer,
  31: optional Chunk chunk,
  32: optional Given given,
  33: optional Withdrawn withdrawn,
  40: optional Wanted wanted,
  41: optional Staged staged,
  42: optional Refusal refused,
  43: optional Adopted adopted
}

struct Envelopes { 1: list<Envelope> envelopes }

// Where the agents of other partitions are: HOST:PORT by the name of the partition.
struct Peers { 1: map<string, string> addresses }

// A hand-over that is not over.
struct HandOver {
  1: string hand_over,
  2: string giver,
  3: string receiver,
  4: string phase,    // of the record that this agent has: offered, given; staging, staged
  5: i64 samples,
  6: i32 chunk_size,
  7: i32 staged       // chunks on disk, at the receiver
}

struct Partition {
  1: string name,
  2: string data_set,       // a digest; partitions of one data set have the same
  3: i64 length,            // samples in the index
  4: i64 version,           // rises with every change of the index
  5: i64 row_bytes,
  6: list<HandOver> hand_overs,
  7: i64 sent               // bytes of rows that were sent since the agent began
}

struct Samples {
  1: binary samples,
  2: optional binary labels // where the data set has them; 64-bit integers too
}

service PartitionAgent {
  // The first call on a connection.
  Greeting hello(
    1: i32 version,     // the oldest version that the client knows
    2: string token,    // empty where the agent has none
    3: i32 newest,      // the newest one; `version` if it is missing or 0
    4: string software  // the name and version of the client, for messages
  ) throws (1: Refused refused),

  // Set the addresses of others. Addresses sent before are kept, unless they are sent again.
  void introduce(1: Sealed peers) throws (1: Refused refused),

  // Hand in an Envelope.
  void deliver(1: Sealed envelope) throws (1: Refused refused),

  // Envelopes for the manager, which are forgotten then; who misses one says again what it wants.
  Sealed collect() throws (1: Refused refused),

  // What the agent has: a Partition.
  Sealed describe() throws (1: Refused refused),

  // What a giver's open hand-over is about: a Begin.
  Sealed begun(1: string hand_over) throws (1: Refused refused),

  // At most 100,000 Samples from a position on, of a version of the index, or CHANGED.
  Sealed samples(1: i64 first, 2: i64 version) throws (1: Refused refused),

  // Free the disk of samples that have left; returns how many bytes that were.
  i64 compact() throws (1: Refused refused)
}
