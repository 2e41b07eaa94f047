#include "tapestry/distributed/comm/internal/collective.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/staged.h"

namespace tapestry::distributed {
namespace {

bool in_place(Op op) { return op == Op::all_reduce || op == Op::broadcast || op == Op::reduce; }

void check_tensor(const char* op, const Tensor& t, const char* what) { detail::check_defined(op, t, what); }

void check_written(const char* op, const Tensor& t, const char* what) {
  check_tensor(op, t, what);
  check(!may_overlap_itself(t), "[", op, "] elements of the ", what, " of shape ", t.sizes(), " and strides ",
        t.strides(), " share memory, so it cannot be written; pass t.clone() instead of an expanded tensor");
}

// `whole_is` and `part_is` name the tensors, the output by a name that begins with "o".
void check_parts(const char* op, const Tensor& whole, std::string_view whole_is, const Tensor& part,
                 std::string_view part_is, int size) {
  check<TypeError>(whole.dtype() == part.dtype(), "[", op, "] the output is ",
                   whole_is[0] == 'o' ? whole.dtype() : part.dtype(), " and the input ",
                   whole_is[0] == 'o' ? part.dtype() : whole.dtype(), "; use one dtype");
  check(whole.numel() == part.numel() * size, "[", op, "] the ", whole_is, " of shape ", whole.sizes(),
        " has ", whole.numel(), " elements, and ", size, " ranks with the ", part_is, " of shape ",
        part.sizes(), " need ", part.numel() * size, "; make it ", size, " times as large");
}

}  // namespace

Device Collective::device(Device transport) const {
  if (transport.is_cuda()) return transport;
  for (const Tensor* t : {&in, &out})
    if (t->defined() && t->device().is_cuda()) return t->device();
  for (const std::vector<Tensor>* list : {&ins, &outs})
    for (const Tensor& t : *list)
      if (t.device().is_cuda()) return t.device();
  return kCPU;
}

const Tensor& Collective::part() const { return op == Op::scatter || op == Op::recv ? out : in; }

bool Collective::writes(int rank) const {
  switch (op) {
    case Op::broadcast:
      return rank != peer;
    case Op::reduce:
    case Op::gather:
      return rank == peer;
    case Op::barrier:
    case Op::send:
    case Op::new_group:
      return false;
    default:
      return true;
  }
}

namespace {

void check_device(const char* op, const Tensor& t, Device device, Device transport) {
  check<DeviceError>(!t.defined() || t.device().is_cpu() || t.device() == device, "[", op,
                     "] a tensor is on ", t.defined() ? t.device() : kCPU, ", but ",
                     transport.is_cuda() ? "this group uses " : "the other tensor is on ", device,
                     "; move it there with .to()");
}

void check_reduction(const char* op, DType dtype, ReduceOp reduce) {
  check<TypeError>(contains(kAllDTypes, dtype), "[", op, "] ", dtype,
                   " tensors cannot be reduced; convert them to int32 with to()");
  check<TypeError>(reduce != ReduceOp::mean || is_floating(dtype), "[", op, "] the mean of ", dtype,
                   " is not defined; use the sum, or convert to a floating dtype");
}

// Checks all_gather and reduce_scatter.
void check_lists(const Collective& call, int size, Device transport) {
  const char* const op = op_name(call.op);
  check(call.ins.size() == call.outs.size(), "[", op, "] got ", call.outs.size(), " outputs and ",
        call.ins.size(), " inputs; pass one output for each input");
  for (std::size_t i = 0; i < call.ins.size(); ++i) {
    const std::string which = call.ins.size() == 1 ? "" : concat({"s[", i, "]"});
    const std::string output = "output" + which, input = "input" + which;
    check_written(op, call.outs[i], output.c_str());
    check_tensor(op, call.ins[i], input.c_str());
    if (call.op == Op::all_gather) check_parts(op, call.outs[i], output, call.ins[i], input, size);
    else check_parts(op, call.ins[i], input, call.outs[i], output, size);
    if (call.op == Op::reduce_scatter) check_reduction(op, call.ins[i].dtype(), call.reduce);
  }
  const Device device = call.device(transport);
  for (const std::vector<Tensor>* list : {&call.ins, &call.outs})
    for (const Tensor& t : *list) check_device(op, t, device, transport);
}

}  // namespace

void check_collective(const Collective& call, int rank, int size, Device transport) {
  if (call.has_lists()) return check_lists(call, size, transport);
  const char* const op = op_name(call.op);
  const bool at_root = rank == call.peer;
  switch (call.op) {
    case Op::all_reduce:
    case Op::broadcast:
    case Op::reduce:
      check_written(op, call.in, "tensor");
      break;
    case Op::gather:
      check_tensor(op, call.in, "input");
      if (at_root) check_written(op, call.out, "output");
      if (at_root) check_parts(op, call.out, "output", call.in, "input", size);
      break;
    case Op::scatter:
      check_written(op, call.out, "output");
      if (at_root) check_tensor(op, call.in, "input");
      if (at_root) check_parts(op, call.in, "input", call.out, "output", size);
      break;
    case Op::all_to_all:
      check_written(op, call.out, "output");
      check_tensor(op, call.in, "input");
      check_parts(op, call.out, "output", call.in, "input", 1);
      check(call.in.numel() % size == 0, "[all_to_all] ", call.in.numel(), " elements of shape ",
            call.in.sizes(), " cannot be divided into ", size, " equal parts; pad the tensor");
      break;
    case Op::send:
      check_tensor(op, call.in, "tensor");
      break;
    case Op::recv:
      check_written(op, call.out, "tensor");
      break;
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::barrier:
    case Op::new_group:
      return;
  }
  const Device device = call.device(transport);
  for (const Tensor* t : {&call.in, &call.out}) check_device(op, *t, device, transport);
  if (call.op == Op::all_reduce || call.op == Op::reduce) check_reduction(op, call.in.dtype(), call.reduce);
  if (call.op == Op::broadcast || call.op == Op::reduce || call.op == Op::gather || call.op == Op::scatter)
    check<IndexError>(call.peer >= 0 && call.peer < size, "[", op, "] root ", call.peer, " of a group of ",
                      size, " ranks; pass one of 0 to ", size - 1);
  if (call.op == Op::send || call.op == Op::recv) {
    check<IndexError>(call.peer >= 0 && call.peer < size, "[", op, "] peer ", call.peer, " of a group of ",
                      size, " ranks; pass one of 0 to ", size - 1);
    check(!at_root, "[", op, "] peer ", call.peer, " is this rank itself; copy the tensor instead");
  }
}

namespace {

using Fill = Staged::Fill;

/// A tensor that consists of one block per rank, in memory that the transport accepts. Uses the tensor's own
/// memory if each block is contiguous there, otherwise a copy of all blocks. A transport of a CUDA device
/// also needs blocks without gaps: NCCL's calls depend on that, and they must not depend on one rank's
/// strides.
class RankBlocks {
 public:
  RankBlocks(const Tensor& t, int size, Fill fill, Device where, Deadline deadline) {
    std::optional<std::size_t> pitch;
    if (t.device() == where && fill != Fill::copy && (where.is_cpu() || t.is_contiguous()))
      pitch = block_pitch(t, size);
    if (!pitch) staged_.emplace(t, fill, where, deadline);
    data_ = pitch ? t.raw_data() : staged_->data();
    pitch_ = pitch.value_or(t.nbytes() / static_cast<std::size_t>(size));
  }
  void* data() const { return data_; }
  std::size_t pitch() const { return pitch_; }
  void store() const {
    if (staged_) staged_->store();
  }

 private:
  std::optional<Staged> staged_;
  void* data_ = nullptr;
  std::size_t pitch_ = 0;
};

/// Says which inputs of a call with lists must be copied, because they share memory with outputs.
class SharedInputs {
 public:
  explicit SharedInputs(const Collective& call) : call_(call) {
    for (const Tensor& t : call.outs) outs_.push_back(address_range(t));
  }
  bool must_copy(std::size_t i, int rank, int size) const {
    const auto [begin, end] = address_range(call_.ins[i]);
    const bool shares = std::any_of(outs_.begin(), outs_.end(), [b = begin, e = end](const auto& out) {
      return b < out.second && out.first < e;
    });
    return shares && !is_own_block(i, rank, size);
  }

 private:
  // The backends allow that the part of this rank is its block of the whole.
  bool is_own_block(std::size_t i, int rank, int size) const {
    const bool gathers = call_.op == Op::all_gather;
    const Tensor &whole = gathers ? call_.outs[i] : call_.ins[i], &part = call_.parts()[i];
    const auto pitch = block_pitch(whole, size);
    return pitch && part.is_contiguous() && part.device() == whole.device() &&
           part.raw_data() ==
               static_cast<std::byte*>(whole.raw_data()) + static_cast<std::size_t>(rank) * *pitch;
  }

  const Collective& call_;
  std::vector<std::pair<std::intptr_t, std::intptr_t>> outs_;
};

void run_lists(const Collective& call, Backend& backend, Deadline deadline) {
  const int size = backend.size();
  const Device where = backend.device();
  const bool gathers = call.op == Op::all_gather;
  const SharedInputs shared(call);
  std::deque<RankBlocks> wholes;
  std::deque<Staged> parts;
  std::vector<GatherPart> gather_parts;
  std::vector<ScatterPart> scatter_parts;
  for (std::size_t i = 0; i < call.ins.size(); ++i) {
    const Tensor &in = call.ins[i], &out = call.outs[i];
    if (in.numel() == 0) continue;
    const Fill read = shared.must_copy(i, backend.rank(), size) ? Fill::copy : Fill::yes;
    const RankBlocks& whole =
        wholes.emplace_back(gathers ? out : in, size, gathers ? Fill::no : read, where, deadline);
    const Staged& part = parts.emplace_back(gathers ? in : out, gathers ? read : Fill::no, where, deadline);
    if (gathers) gather_parts.push_back({part.data(), whole.data(), in.nbytes(), whole.pitch()});
    else scatter_parts.push_back({whole.data(), part.data(), out.numel(), out.dtype(), whole.pitch()});
  }
  if (wholes.empty()) return;
  if (gathers) {
    backend.all_gather(gather_parts, deadline);
    for (const RankBlocks& whole : wholes) whole.store();
  } else {
    backend.reduce_scatter(scatter_parts, call.reduce, deadline);
    for (const Staged& part : parts) part.store();
  }
}

}  // namespace

void run_collective(const Collective& call, Backend& backend, Deadline deadline) {
  if (call.op == Op::barrier) return backend.barrier(deadline);
  if (call.has_lists()) return run_lists(call, backend, deadline);
  const Tensor& part = call.part();
  const DType dtype = part.dtype();
  const bool at_root = backend.rank() == call.peer, writes = call.writes(backend.rank());
  if (part.numel() == 0) return;

  if (in_place(call.op)) {
    // Backend::reduce() leaves unspecified values in the buffers of ranks other than the root. The caller's
    // tensors must not change there, so they are copied.
    const Staged data(call.in,
                      call.op == Op::reduce && !at_root      ? Fill::copy
                      : call.op == Op::broadcast && !at_root ? Fill::no
                                                             : Fill::yes,
                      backend.device(), deadline);
    if (call.op == Op::all_reduce)
      backend.all_reduce(data.data(), part.numel(), dtype, call.reduce, deadline);
    else if (call.op == Op::reduce)
      backend.reduce(data.data(), part.numel(), dtype, call.reduce, call.peer, deadline);
    else backend.broadcast(data.data(), part.nbytes(), call.peer, deadline);
    if (writes) data.store();
    return;
  }

  const bool reads = call.op != Op::scatter || at_root;
  std::optional<Staged> in, out;
  if (reads)
    in.emplace(call.in, writes && may_overlap(call.in, call.out) ? Fill::copy : Fill::yes, backend.device(),
               deadline);
  if (writes) out.emplace(call.out, Fill::no, backend.device(), deadline);
  const void* const from = in ? in->data() : nullptr;
  void* const to = out ? out->data() : nullptr;
  switch (call.op) {
    case Op::gather:
      backend.gather(from, to, part.nbytes(), call.peer, deadline);
      break;
    case Op::scatter:
      backend.scatter(from, to, part.nbytes(), call.peer, deadline);
      break;
    default:
      backend.all_to_all(from, to, part.nbytes() / static_cast<std::size_t>(backend.size()), deadline);
  }
  if (out) out->store();
}

}  // namespace tapestry::distributed
