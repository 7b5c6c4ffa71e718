// The manager of Evenstep: workers send reports and receive plans.
//
// Version 1. Messages are Thrift's binary protocol (strict) in framed transport, over TCP or TLS. A
// frame to the manager has at most 16 KiB; one from it, at most 64 MiB.
//
// A connection begins with `hello`. A worker then calls `join` once, and `report` at every boundary;
// from then on the connection belongs to that worker. One call at a time on a connection. A client
// that only calls `status` or `create` does not join.
//
// New fields are always optional; a change to the meaning of an existing one needs a new VERSION.
// Both sides ignore unknown fields, and know a range of versions: they use the newest that both know.

namespace py evenstep_manager
namespace cpp evenstep.manager
namespace java evenstep.manager
namespace go evenstep_manager

const i32 VERSION = 1

enum Problem {
  INVALID = 1,        // an argument breaks its rule, or a report is impossible
  VERSION = 2,        // the manager knows no version that the client knows
  TOKEN = 3,          // the token is wrong or missing, or that of another job
  UNKNOWN_JOB = 4,    // there is no such job, and no settings to create it were given
  MEMBERSHIP = 5,     // not a member: join, or join again
  NAME_TAKEN = 6,     // a worker of this name is connected
  OUT_OF_TURN = 7,    // the call cannot be made now
  INFEASIBLE = 8,     // no plan can keep the total within the limits
  UNPLANNED = 9,      // the plan did not come in time: continue with the last one
  LIMIT = 10          // too many jobs, workers or refused calls
}

exception Refused {
  1: Problem problem,
  2: string message   // what, which, the rule, and the value
}

// The reply to `hello`. Managers from before it reply with nothing, and know version 1 alone.
struct Greeting {
  1: i32 version,             // the version of this connection: the newest that both sides know
  2: optional string software // the name and version of the manager, for messages
}

// The settings of a job. They never change; a `join` with other settings is refused.
struct Settings {
  1: i64 workers,               // the job begins when this many have joined
  2: i64 total,                 // X: samples of all workers in one iteration
  3: optional string policy,    // short form, as on the command line; equal_finish by default
  4: optional string predictor, // short form; best_of by default
  5: optional i64 minimum,      // smallest batch size; 1 by default
  6: optional i64 granularity,  // every batch size is a multiple of this; 1 by default
  7: optional bool elastic      // whether others may join once `workers` have; false by default
}

// The arguments of `join`.
struct Entry {
  1: string job,
  2: string worker,
  3: i64 iteration,              // the iteration that the worker is about to start
  4: double lease,               // seconds of silence after which it leaves
  5: optional Settings settings, // with them, the job is created if it does not exist
  6: optional string instance,   // random text of the client; with it, the client can join again
                                 // while the manager still holds its old, dead connection
  7: optional string reuse       // with settings: as in `create`
}

// A worker's report at the boundary of iteration k.
struct Report {
  1: i64 iteration,                          // k: the iteration about to start
  2: optional i64 batch_size,                // x of k-1; missing if it processed nothing
  3: optional double batch_processing_time,  // t of k-1 in seconds, waiting excluded
  4: optional double cpu,                    // c at the start of k, 0..1; 1 by default
  5: optional double memory,                 // m, the free share at the start of k; 1 by default
  6: optional double device_memory,          // share of the device's memory in use, if known
  7: optional i64 plan,                      // number of the newest plan that the worker holds
  8: optional i64 cap,                       // the largest batch size that it can run, if known
  9: optional i64 measured                   // the iteration of batch_size and batch_processing_time,
                                             // if a device is measured late; k-1 by default
}

struct Plan {
  1: i64 number,           // increases; a new number means new sizes or new members
  2: i64 iteration,        // the first iteration that uses these sizes
  3: list<string> workers, // the members
  4: list<i64> sizes,      // the batch size of each; they add up to the total
  5: string reason
}

struct Membership {
  1: i64 iteration,        // the first boundary that the worker takes part in
  2: Settings settings,
  3: optional Plan plan,   // the newest plan, if there is one
  4: optional list<Plan> recent // earlier plans that others may still hold, in order
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
  3: bool running,         // false while the job waits for its first workers
  4: i64 iteration,        // k of the open boundary
  5: list<WorkerStatus> workers,
  6: optional Plan plan
}

service BatchSizeManager {
  // The first call on a connection.
  Greeting hello(
    1: i32 version,     // the oldest version that the client knows
    2: string token,    // the manager's, or that of one job; empty if it has none
    3: i32 newest,      // the newest one; `version` if it is missing or 0
    4: string software  // the name and version of the client, for messages
  ) throws (1: Refused refused),

  // Create a job. A second call with the same settings changes nothing. If `reuse` is given, a new
  // job begins with the learned state of the predictors of the job of that name.
  void create(1: string job, 2: Settings settings, 3: string reuse) throws (1: Refused refused),

  // Become a worker of a job. The first worker that joins while no other is connected sets the
  // iteration at which the job continues; later ones take part from the boundary in the reply on.
  Membership join(1: Entry entry) throws (1: Refused refused),

  // Send a report; the reply is the plan of its iteration, when every member has reported, or
  // UNPLANNED after `wait` seconds. The report counts in both cases. Boundaries before that of the
  // report no longer wait for this worker.
  Plan report(1: Report report, 2: double wait) throws (1: Refused refused),

  // Agree on the plan of an iteration, for a loop in which no data plane does: send the number of
  // the newest plan held; the reply is the smallest number of all members, or UNPLANNED for all of
  // them after `wait` seconds.
  i64 agree(1: i64 iteration, 2: i64 number, 3: double wait) throws (1: Refused refused),

  // Renew the lease, as every other call does.
  void renew() throws (1: Refused refused),

  // Leave the job: the others no longer wait for this worker.
  void leave() throws (1: Refused refused),

  // The status of one job, or of all jobs if the name is empty.
  list<JobStatus> status(1: string job) throws (1: Refused refused)
}
