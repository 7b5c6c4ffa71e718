// The manager of Evenstep: workers hand in reports and get plans.
//
// Version 1. Messages are Thrift's binary protocol (strict) in framed transport, over TCP or TLS. A
// frame to the manager has at most 16 KiB; one from it, at most 64 MiB.
//
// A connection begins with `hello`. A worker then calls `join` once, and `report` at every boundary;
// from then on the connection is that worker's. One call at a time on a connection. Whoever only
// looks (`status`) or creates a job does not join.
//
// Fields are only ever added, as optional ones; whatever changes the meaning of an old one gets a new
// VERSION. Unknown fields are passed over, on both sides.

namespace py evenstep_manager
namespace cpp evenstep.manager
namespace java evenstep.manager
namespace go evenstep_manager

const i32 VERSION = 1

enum Problem {
  INVALID = 1,        // an argument breaks its rule, or a report says what cannot be true
  VERSION = 2,        // the manager does not speak the version of the client
  TOKEN = 3,          // the token is wrong, or there is none
  UNKNOWN_JOB = 4,    // there is no such job, and no settings to create it came along
  MEMBERSHIP = 5,     // not a member: join, or join again
  NAME_TAKEN = 6,     // a worker of this name is there and connected
  OUT_OF_TURN = 7,    // the call cannot be made now
  INFEASIBLE = 8,     // no plan can keep the total within the limits
  UNPLANNED = 9,      // what was waited for did not come in time: go on with the last plan
  LIMIT = 10          // too many jobs, workers or refused calls
}

exception Refused {
  1: Problem problem,
  2: string message   // what, which, the rule, and what came
}

// What a job is made of. It stays; who joins with other settings is refused.
struct Settings {
  1: i64 workers,               // the job begins when this many have joined; later ones may join too
  2: i64 total,                 // X: samples of all workers in one iteration
  3: optional string policy,    // short form, as on the command line; equal_finish by default
  4: optional string predictor, // short form; best_of by default
  5: optional i64 minimum,      // smallest batch size; 1 by default
  6: optional i64 granularity   // every batch size is a multiple of this; 1 by default
}

// Who comes to a job.
struct Entry {
  1: string job,
  2: string worker,
  3: i64 iteration,              // the iteration that the worker is about to start
  4: double lease,               // seconds of silence after which it leaves
  5: optional Settings settings, // with them, the job is created if it is not there
  6: optional string instance,   // drawn by a client once; with it, it takes its own place again
                                 // also while the manager still holds its old, dead connection
  7: optional string reuse       // with settings: as in `create`
}

// What a worker says at the boundary of iteration k.
struct Report {
  1: i64 iteration,                          // k: the iteration about to start
  2: optional i64 batch_size,                // x of k-1; left out where it processed nothing
  3: optional double batch_processing_time,  // t of k-1 in seconds, waiting excluded
  4: optional double cpu,                    // c at the start of k, 0..1; 1 by default
  5: optional double memory,                 // m, the free share at the start of k; 1 by default
  6: optional double device_memory,          // share of the device's memory in use, where known
  7: optional i64 plan,                      // number of the newest plan that the worker holds
  8: optional i64 cap,                       // the largest batch size that it can run, where it knows
  9: optional i64 measured                   // the iteration of batch_size and batch_processing_time,
                                             // where a device is measured late; k-1 by default
}

struct Plan {
  1: i64 number,           // rises; a new number means new sizes or new members
  2: i64 iteration,        // the first iteration that uses these sizes
  3: list<string> workers, // the members
  4: list<i64> sizes,      // the batch size of each; they add up to the total
  5: string reason
}

struct Membership {
  1: i64 iteration,        // the first boundary that the worker takes part in
  2: Settings settings,
  3: optional Plan plan,   // the newest plan, where there is one already
  4: optional list<Plan> recent // plans before it that others may still hold, in order
}

struct WorkerStatus {
  1: string worker,
  2: bool connected,
  3: bool reported,        // whether it has reported for the open boundary
  4: optional i64 batch_size
}

struct JobStatus {
  1: string job,
  2: Settings settings,
  3: bool running,         // false while the job still waits for its first workers
  4: i64 iteration,        // k of the open boundary
  5: list<WorkerStatus> workers,
  6: optional Plan plan
}

service BatchSizeManager {
  // The first call on a connection. The token is empty where the manager has none.
  void hello(1: i32 version, 2: string token) throws (1: Refused refused),

  // Create a job. Once more with the same settings is harmless. A new one begins with what the
  // predictors of the job called `reuse` have learned, where that is given.
  void create(1: string job, 2: Settings settings, 3: string reuse) throws (1: Refused refused),

  // Become a worker of a job. The first one to come when no other is connected says where the job
  // goes on; who comes later takes part from the boundary in the reply on.
  Membership join(1: Entry entry) throws (1: Refused refused),

  // Hand in a report; the reply is the plan of its iteration, when every member has reported, or
  // UNPLANNED after `wait` seconds. The report stays handed in then. For the boundaries before that
  // of the report the worker is no longer waited for.
  Plan report(1: Report report, 2: double wait) throws (1: Refused refused),

  // Agree on the plan of an iteration, for a loop in which no data plane does: hand in the number of
  // the newest plan held; the reply is the smallest number of all members, or UNPLANNED after `wait`
  // seconds, then for everybody.
  i64 agree(1: i64 iteration, 2: i64 number, 3: double wait) throws (1: Refused refused),

  // Renew the lease; every other call does, too.
  void renew() throws (1: Refused refused),

  // Leave the job: the others go on without waiting for this worker.
  void leave() throws (1: Refused refused),

  // What is going on: one job, or all of them where the name is empty.
  list<JobStatus> status(1: string job) throws (1: Refused refused)
}
