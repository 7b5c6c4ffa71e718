// The parameter server of a run in network namespaces: workers train together, synchronously.
//
// Version 1. Messages are Thrift's binary protocol (strict) in framed transport, over TCP. A connection
// begins with `hello`; one call at a time on it. In every iteration a worker calls `report`, `pull` and
// `push`, in this order.
//
// Parameters and gradients are 64-bit floats, little end first, one tensor after the other.

namespace py evenstep_parameters

const i32 VERSION = 1

enum Problem {
  INVALID = 1,     // an argument breaks its rule
  VERSION = 2,     // the parameter server does not speak the version of the worker
  OUT_OF_TURN = 3  // the call cannot be made now
}

exception Refused {
  1: Problem problem,
  2: string message // what, which, the rule, and what came
}

// The reply to `hello`, as in `manager.thrift`.
struct Greeting {
  1: i32 version,
  2: optional string software
}

// What a worker does in an iteration.
struct Batch {
  1: list<i64> samples,  // none where the training is over
  2: double computation  // seconds that the emulated device takes for them
}

service ParameterServer {
  // The first call on a connection. There is no token: nobody else is in this network.
  Greeting hello(
    1: i32 version, 2: string token, 3: i32 newest, 4: string software
  ) throws (1: Refused refused),

  // Say how long the last iteration took, where there was one; the reply comes when all have done so.
  Batch report(1: i32 worker, 2: double batch_processing_time) throws (1: Refused refused),

  // The parameters, which stay as they are until all have pushed.
  binary pull() throws (1: Refused refused),

  // The gradient of the mean loss over the samples of the batch.
  void push(1: i32 worker, 2: binary gradient) throws (1: Refused refused)
}
