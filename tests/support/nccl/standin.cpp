// The stand-in NCCL; standin.h describes it.
#include "tests/support/nccl/standin.h"

#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/nccl/reduce.h"

namespace {

using namespace standin;

// ---- communicators ----

enum class Kind { all_reduce, reduce, reduce_scatter, broadcast, all_gather, send, recv };
constexpr std::array kNames{"ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclBroadcast",
                            "ncclAllGather", "ncclSend",   "ncclRecv"};
const char* name_of(Kind kind) { return kNames[static_cast<std::size_t>(kind)]; }

/// One operation that one rank has called, such as ncclAllReduce.
struct Operation {
  Kind kind;
  const void* in;
  void* out;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;  // the root of a collective, or the peer of a send or receive
  std::size_t sequence = 0;
  bool arrived = false, done = false;

  bool is_message() const { return kind == Kind::send || kind == Kind::recv; }
  bool matches(const Operation& o) const {
    return kind == o.kind && count == o.count && type == o.type && op == o.op && root == o.root;
  }
  std::string str() const {
    return std::string(name_of(kind)) + " of " + std::to_string(count) + " elements of type " +
           std::to_string(type) + ", operation " + std::to_string(op) + ", root " + std::to_string(root);
  }
};

/// The ranks that share a unique id.
struct Clique {
  int size = 0;
  std::map<int, int> gpus;                                                       // the GPU of each rank
  std::map<std::size_t, std::map<int, std::shared_ptr<Operation>>> collectives;  // by sequence and rank
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Operation>>> sends,
      recvs;  // by sender and receiver
};

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool initialised = false, finalized = false, aborted = false;
  int polls_left = 0;
  int outstanding = 0;  // launches that have not finished
  std::size_t sequence = 0;
  ncclResult_t error = ncclSuccess;
};

struct Fault {
  int nth;
  ncclResult_t result;
  bool asynchronous;
};

/// The operations that one ncclGroupEnd(), or one call outside of a group, gives to a stream.
struct Launch {
  ncclComm_t handle;
  std::shared_ptr<Comm> comm;
  cudaStream_t stream;
  std::vector<std::shared_ptr<Operation>> operations;
};

std::mutex mutex;
std::condition_variable changed;
std::map<ncclComm_t, std::shared_ptr<Comm>> comms;  // communicators that were not destroyed or aborted
std::set<ncclComm_t> gone;
std::map<std::string, std::shared_ptr<Clique>> cliques;
std::map<std::string, int> call_counts;
std::multimap<std::string, Fault> faults;
std::set<std::unique_ptr<Launch>> in_flight;
std::string violation_text, violation_copy;
std::uintptr_t next_handle = 0x1000;
std::uint64_t next_id = 1;
int polls = 2, aborts = 0;
bool abort_held = false;
void (*launch_work)(void*, int (*)(void*), void*) = nullptr;
int (*chosen_gpu)() = nullptr;
void* (*memory_at)(const void*, unsigned long, int) = nullptr;

thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local std::vector<Launch> group_launches;
thread_local ncclResult_t group_error = ncclSuccess;

ncclResult_t violated(const std::string& text, ncclResult_t result = ncclInvalidArgument) {
  violation_text += text + "\n";
  last_error = text;
  return result;
}

/// Counts the call. Returns the fault that a test has requested for this call, or null.
const Fault* counted(const char* call) {
  const int n = call_counts[call]++;
  const auto [begin, end] = faults.equal_range(call);
  for (auto it = begin; it != end; ++it)
    if (it->second.nth == n) {
      last_error = "the test asked " + std::string(call) + " to fail";
      return &it->second;
    }
  return nullptr;
}

std::shared_ptr<Comm> find(ncclComm_t handle, const char* call) {
  const auto it = comms.find(handle);
  if (it != comms.end()) return it->second;
  violated(std::string(call) +
           (gone.contains(handle) ? " of a communicator that is gone" : " of no communicator"));
  return nullptr;
}

void begin_progress(Comm& comm) { comm.polls_left = polls; }

// ---- work on streams ----

void compute(const std::map<int, std::shared_ptr<Operation>>& ranks) {
  const Operation& first = *ranks.begin()->second;
  const std::size_t bytes = first.count * size_of(first.type);
  std::vector<const void*> in;
  for (const auto& [rank, operation] : ranks) in.push_back(operation->in);
  switch (first.kind) {
    case Kind::all_reduce: {
      std::vector<char> sum(bytes);
      reduce(sum.data(), in, first.count, first.type, first.op);
      for (const auto& [rank, operation] : ranks)
        std::copy(sum.begin(), sum.end(), static_cast<char*>(operation->out));
      break;
    }
    case Kind::reduce:
      reduce(ranks.at(first.root)->out, in, first.count, first.type, first.op);
      break;
    case Kind::reduce_scatter: {
      std::vector<std::vector<char>> sums;
      for (const auto& [rank, operation] : ranks) {
        std::vector<const void*> parts;
        for (const void* x : in)
          parts.push_back(static_cast<const char*>(x) + static_cast<std::size_t>(rank) * bytes);
        sums.emplace_back(bytes);
        reduce(sums.back().data(), parts, first.count, first.type, first.op);
      }
      for (const auto& [rank, operation] : ranks)
        std::copy(sums[static_cast<std::size_t>(rank)].begin(), sums[static_cast<std::size_t>(rank)].end(),
                  static_cast<char*>(operation->out));
      break;
    }
    case Kind::broadcast: {
      const auto* const root = static_cast<const char*>(ranks.at(first.root)->in);
      const std::vector<char> data(root, root + bytes);
      for (const auto& [rank, operation] : ranks)
        std::copy(data.begin(), data.end(), static_cast<char*>(operation->out));
      break;
    }
    case Kind::all_gather: {
      std::vector<char> all;
      for (const void* x : in)
        all.insert(all.end(), static_cast<const char*>(x), static_cast<const char*>(x) + bytes);
      for (const auto& [rank, operation] : ranks)
        std::copy(all.begin(), all.end(), static_cast<char*>(operation->out));
      break;
    }
    case Kind::send:
    case Kind::recv:
      break;
  }
}

/// Replaces the addresses of an operation by those of the host.
void find_memory(Operation& o, int size, int rank) {
  if (!memory_at) return;
  const std::size_t bytes = o.count * size_of(o.type), all = bytes * static_cast<std::size_t>(size);
  if (o.kind != Kind::recv && !(o.kind == Kind::broadcast && rank != o.root))
    o.in = memory_at(o.in, o.kind == Kind::reduce_scatter ? all : bytes, 0);
  if (o.kind != Kind::send && !(o.kind == Kind::reduce && rank != o.root))
    o.out = memory_at(o.out, o.kind == Kind::all_gather ? all : bytes, 1);
}

void arrive(Clique& clique, int rank, const std::shared_ptr<Operation>& operation) {
  operation->arrived = true;
  find_memory(*operation, clique.size, rank);
  if (operation->is_message()) {
    const bool sends = operation->kind == Kind::send;
    const std::pair key = sends ? std::pair(rank, operation->root) : std::pair(operation->root, rank);
    (sends ? clique.sends : clique.recvs)[key].push_back(operation);
    auto& sent = clique.sends[key];
    auto& expected = clique.recvs[key];
    while (!sent.empty() && !expected.empty()) {
      Operation &s = *sent.front(), &r = *expected.front();
      if (s.count != r.count || s.type != r.type) {
        violated("rank " + std::to_string(key.first) + " has " + s.str() + " and rank " +
                 std::to_string(key.second) + " has " + r.str());
        return;
      }
      std::memmove(r.out, s.in, s.count * size_of(s.type));
      s.done = r.done = true;
      sent.pop_front();
      expected.pop_front();
    }
    return;
  }
  auto& ranks = clique.collectives[operation->sequence];
  for (const auto& [other, theirs] : ranks)
    if (!theirs->matches(*operation)) {
      violated("rank " + std::to_string(other) + " has " + theirs->str() + " and rank " +
               std::to_string(rank) + " has " + operation->str());
      break;
    }
  ranks[rank] = operation;
  if (static_cast<int>(ranks.size()) < clique.size) return;
  const bool equal =
      std::all_of(ranks.begin(), ranks.end(), [&](const auto& r) { return r.second->matches(*operation); });
  if (!equal) return;
  compute(ranks);
  for (const auto& [other, theirs] : ranks) theirs->done = true;
  clique.collectives.erase(operation->sequence);
}

/// The work item that a stream runs. Returns nonzero if it has finished.
int run(void* argument) {
  const std::lock_guard lock(mutex);
  auto* const launch = static_cast<Launch*>(argument);
  const bool killed = launch->comm->aborted || launch->comm->error != ncclSuccess;
  if (!killed) {
    for (const auto& operation : launch->operations)
      if (!operation->arrived) arrive(*launch->comm->clique, launch->comm->rank, operation);
    for (const auto& operation : launch->operations)
      if (!operation->done) return 0;
  }
  --launch->comm->outstanding;
  in_flight.erase(
      std::find_if(in_flight.begin(), in_flight.end(), [&](const auto& l) { return l.get() == launch; }));
  return 1;
}

// ---- calls ----

/// Appends launches to their streams. The caller must not hold the mutex, because the work takes it.
ncclResult_t launch_all(std::vector<Launch> launches) {
  for (Launch& launch : launches) {
    Launch* given = nullptr;
    {
      const std::lock_guard lock(mutex);
      if (!launch_work) return violated("no device: set_device() was not called", ncclInternalError);
      begin_progress(*launch.comm);
      ++launch.comm->outstanding;
      for (const auto& operation : launch.operations)
        if (!operation->is_message()) operation->sequence = launch.comm->sequence++;
      auto owned = std::make_unique<Launch>(std::move(launch));
      given = owned.get();
      in_flight.insert(std::move(owned));
    }
    launch_work(given->stream, run, given);
  }
  return launches.empty() ? ncclSuccess : ncclInProgress;
}

ncclResult_t call(Kind kind, const void* in, void* out, std::size_t count, ncclDataType_t type,
                  ncclRedOp_t op, int root, ncclComm_t handle, cudaStream_t stream) {
  const char* const name = name_of(kind);
  Launch launch{handle, nullptr, stream, {}};
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex);
    const Fault* const fault = counted(name);
    launch.comm = find(handle, name);
    const std::string where = name;
    if (!launch.comm) {
      result = ncclInvalidArgument;
    } else if (Comm& comm = *launch.comm; !comm.initialised || comm.polls_left > 0) {
      result = violated(where + " before the previous call on the communicator had completed");
    } else if (comm.finalized || comm.aborted) {
      result = violated(where + " after the end of the communicator");
    } else if (size_of(type) == 0) {
      result = violated(where + " with the type " + std::to_string(type));
    } else if (op < 0 || op >= ncclNumOps) {
      result = violated(where + " with the operation " + std::to_string(op));
    } else if (root < 0 || root >= comm.clique->size) {
      result = violated(where + " with the root or peer " + std::to_string(root));
    } else if (count > 0 && (kind == Kind::recv ? !out : !in)) {
      result = violated(where + " with a null buffer");
    } else if (!stream) {
      result = violated(where + " on the default stream");
    } else if (fault && fault->asynchronous) {
      comm.error = fault->result;
      result = ncclInProgress;
    } else if (fault) {
      result = fault->result;
    }
    launch.operations.push_back(
        std::make_shared<Operation>(Operation{kind, in, out, count, type, op, root, 0, false, false}));
  }
  if (group_depth > 0) {
    if (result != ncclSuccess && result != ncclInProgress) group_error = result;
    if (result != ncclSuccess) return result;
    const auto same = std::find_if(group_launches.begin(), group_launches.end(),
                                   [&](const Launch& l) { return l.handle == handle && l.stream == stream; });
    if (same == group_launches.end()) group_launches.push_back(std::move(launch));
    else same->operations.push_back(std::move(launch.operations[0]));
    return ncclSuccess;
  }
  if (result != ncclSuccess) return result;
  std::vector<Launch> launches;
  launches.push_back(std::move(launch));
  return launch_all(std::move(launches));
}

template <class F>
ncclResult_t on_comm(const char* name, ncclComm_t handle, F f) {
  std::unique_lock lock(mutex);
  const Fault* const fault = counted(name);
  const auto comm = find(handle, name);
  if (!comm) return ncclInvalidArgument;
  if (fault && !fault->asynchronous) return fault->result;
  if (fault) {
    comm->error = fault->result;
    return ncclInProgress;
  }
  return f(*comm, lock);
}

void forget(ncclComm_t handle, const std::shared_ptr<Comm>& comm) {
  comm->aborted = true;
  gone.insert(handle);
  comms.erase(handle);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "in progress";
  }
}

const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  if (const Fault* const fault = counted("ncclGetUniqueId")) return fault->result;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "stand-in %llu",
                static_cast<unsigned long long>(next_id++));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const int gpu = chosen_gpu ? chosen_gpu() : -1;  // before the lock, because work of streams takes it
  const std::lock_guard lock(mutex);
  *out = nullptr;
  const Fault* const fault = counted("ncclCommInitRankConfig");
  const std::string name(id.internal, strnlen(id.internal, sizeof id.internal));
  if (!name.starts_with("stand-in "))
    return violated("ncclCommInitRankConfig with an id that ncclGetUniqueId did not make");
  if (size < 1 || rank < 0 || rank >= size)
    return violated("ncclCommInitRankConfig of rank " + std::to_string(rank));
  if (!config || config->size != sizeof *config || config->magic != 0xcafebeef || config->blocking != 0)
    return violated("ncclCommInitRankConfig without the configuration of a communicator that does not block");
  if (gpu < 0) return violated("ncclCommInitRankConfig in a thread that has chosen no GPU");
  if (fault && !fault->asynchronous) return fault->result;
  auto& clique = cliques[name];
  if (!clique) {
    clique = std::make_shared<Clique>();
    clique->size = size;
  }
  if (clique->size != size || clique->gpus.contains(rank))
    return violated("ncclCommInitRankConfig with rank " + std::to_string(rank) + " of " +
                    std::to_string(size) + " twice");
  for (const auto& [other, its_gpu] : clique->gpus)
    if (its_gpu == gpu) {
      last_error =
          "Duplicate GPU detected : rank " + std::to_string(other) + " and rank " + std::to_string(rank);
      return ncclInvalidUsage;
    }
  clique->gpus[rank] = gpu;
  auto comm = std::make_shared<Comm>();
  comm->clique = clique;
  comm->rank = rank;
  if (fault) comm->error = fault->result;
  begin_progress(*comm);
  *out = reinterpret_cast<ncclComm_t>(next_handle += 16);
  comms[*out] = std::move(comm);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  const Fault* const fault = counted("ncclCommGetAsyncError");
  const auto comm = find(handle, "ncclCommGetAsyncError");
  if (!comm) return ncclInvalidArgument;
  if (fault && !fault->asynchronous) return fault->result;
  if (fault) comm->error = fault->result;
  *state = comm->error;
  if (comm->error != ncclSuccess) return ncclSuccess;
  if (!comm->initialised && static_cast<int>(comm->clique->gpus.size()) < comm->clique->size) {
    *state = ncclInProgress;  // not all ranks have joined the communicator yet
    return ncclSuccess;
  }
  if (comm->polls_left > 0) --comm->polls_left;
  if (comm->polls_left > 0 || (comm->finalized && comm->outstanding > 0)) *state = ncclInProgress;
  else comm->initialised = true;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return on_comm("ncclCommFinalize", handle, [](Comm& comm, auto&) {
    if (comm.finalized) return violated("ncclCommFinalize twice");
    if (comm.polls_left > 0) return violated("ncclCommFinalize before the previous call had completed");
    comm.finalized = true;
    begin_progress(comm);
    return ncclInProgress;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return on_comm("ncclCommDestroy", handle, [&](Comm& comm, auto&) {
    if (!comm.finalized || comm.polls_left > 0 || comm.outstanding > 0)
      violated("ncclCommDestroy before ncclCommFinalize had completed");
    forget(handle, comms.at(handle));
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return on_comm("ncclCommAbort", handle, [&](Comm&, auto& lock) {
    const auto comm = comms.at(handle);
    ++aborts;
    changed.wait_for(lock, std::chrono::seconds(30), [] { return !abort_held; });
    --aborts;
    if (!comms.contains(handle)) return violated("two calls of ncclCommAbort at once");
    forget(handle, comm);
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupStart() {
  const std::lock_guard lock(mutex);
  if (const Fault* const fault = counted("ncclGroupStart")) return fault->result;
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  std::vector<Launch> launches;
  ncclResult_t error = ncclSuccess;
  {
    const std::lock_guard lock(mutex);
    const Fault* const fault = counted("ncclGroupEnd");
    if (group_depth == 0) return violated("ncclGroupEnd without ncclGroupStart", ncclInvalidUsage);
    if (--group_depth > 0) return ncclSuccess;
    error = std::exchange(group_error, ncclSuccess);
    launches = std::exchange(group_launches, {});
    if (fault && !fault->asynchronous) error = fault->result;
    if (fault && fault->asynchronous && !launches.empty()) launches[0].comm->error = fault->result;
  }
  if (error != ncclSuccess) return error;
  return launch_all(std::move(launches));
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::all_reduce, in, out, count, type, op, 0, comm, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::reduce, in, out, count, type, op, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::reduce_scatter, in, out, count, type, op, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::broadcast, in, out, count, type, ncclSum, root, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(Kind::all_gather, in, out, count, type, ncclSum, 0, comm, stream);
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(Kind::send, in, nullptr, count, type, ncclSum, peer, comm, stream);
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(Kind::recv, nullptr, out, count, type, ncclSum, peer, comm, stream);
}

const StandInNccl* tapestry_standin_nccl() {
  static const StandInNccl controls{
      .set_device =
          [](void (*launch)(void*, int (*)(void*), void*), int (*gpu)()) {
            const std::lock_guard lock(mutex);
            launch_work = launch;
            chosen_gpu = gpu;
          },
      .set_memory =
          [](void* (*at)(const void*, unsigned long, int)) {
            const std::lock_guard lock(mutex);
            memory_at = at;
          },
      .fail =
          [](const char* name, int nth, int result, int asynchronous) {
            const std::lock_guard lock(mutex);
            faults.emplace(name, Fault{nth, static_cast<ncclResult_t>(result), asynchronous != 0});
          },
      .set_polls =
          [](int n) {
            const std::lock_guard lock(mutex);
            polls = n;
          },
      .hold_aborts =
          [](int on) {
            const std::lock_guard lock(mutex);
            abort_held = on != 0;
            changed.notify_all();
          },
      .calls =
          [](const char* name) {
            const std::lock_guard lock(mutex);
            return call_counts[name];
          },
      .aborting =
          [] {
            const std::lock_guard lock(mutex);
            return aborts;
          },
      .live =
          [] {
            const std::lock_guard lock(mutex);
            return static_cast<int>(comms.size());
          },
      .violations =
          [] {
            const std::lock_guard lock(mutex);
            violation_copy = violation_text;
            return violation_copy.c_str();
          },
      .reset =
          [] {
            const std::lock_guard lock(mutex);
            faults.clear();
            call_counts.clear();
            violation_text.clear();
            cliques.clear();
            gone.clear();
            polls = 2;
            abort_held = false;
          },
  };
  return &controls;
}
}
