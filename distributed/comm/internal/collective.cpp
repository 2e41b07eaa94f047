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

void check_tensor(const char* op, const Tensor& t, const char* what) {
  detail::check_defined(op, t, what);
  t.check_has_elements(op);
}

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

// A rank's part for itself does not travel, so no other rank could notice that its ends differ.
void check_own_part(const Tensor& in, const Tensor& out, int rank) {
  check<TypeError>(in.dtype() == out.dtype(), "[all_to_all] on rank ", rank, ", inputs[", rank, "] is ",
                   in.dtype(), " and outputs[", rank, "] is ", out.dtype(), "; use one dtype");
  check(in.numel() == out.numel(), "[all_to_all] on rank ", rank, ", inputs[", rank, "] has ", in.numel(),
        " elements and outputs[", rank, "] has ", out.numel(), "; make them equal");
}

// Checks calls with lists.
void check_lists(const Collective& call, int rank, int size, Device transport) {
  const char* const op = op_name(call.op);
  check(call.ins.size() == call.outs.size(), "[", op, "] got ", call.outs.size(), " outputs and ",
        call.ins.size(), " inputs; pass one output for each input");
  for (std::size_t i = 0; i < call.ins.size(); ++i) {
    const std::string which = call.ins.size() == 1 ? "" : concat({"s[", i, "]"});
    const std::string output = "output" + which, input = "input" + which;
    check_written(op, call.outs[i], output.c_str());
    check_tensor(op, call.ins[i], input.c_str());
    if (call.op == Op::all_gather) check_parts(op, call.outs[i], output, call.ins[i], input, size);
    else if (call.op == Op::reduce_scatter) check_parts(op, call.ins[i], input, call.outs[i], output, size);
    else if (static_cast<int>(i) == rank) check_own_part(call.ins[i], call.outs[i], rank);
    if (call.op == Op::reduce_scatter) check_reduction(op, call.ins[i].dtype(), call.reduce);
  }
  const Device device = call.device(transport);
  for (const std::vector<Tensor>* list : {&call.ins, &call.outs})
    for (const Tensor& t : *list) check_device(op, t, device, transport);
}

}  // namespace

int check_along(const char* op, const Tensor& whole, const char* whole_is, const Tensor& part,
                const char* part_is, int dim, int size) {
  detail::check_defined(op, whole, whole_is);
  detail::check_defined(op, part, part_is);
  check<IndexError>(part.dim() > 0, "[", op, "] the ", part_is,
                    " has no dimensions; reshape it to one of size 1");
  const int d = wrap_dim(op, dim, part.dim());
  Shape expected = part.sizes();
  expected[d] *= size;
  check(whole.sizes() == expected, "[", op, "] the ", whole_is, " has shape ", whole.sizes(), ", and the ",
        part_is, " of shape ", part.sizes(), " along dimension ", d, " of ", size, " ranks needs ", expected,
        "; pass tensors that differ in this dimension alone");
  check(d == 0 || part.dim() < kMaxDims, "[", op, "] tensors of ", part.dim(),
        " dimensions cannot be divided along dimension ", d, "; merge two dimensions by view()");
  return d;
}

void check_collective(const Collective& call, int rank, int size, Device transport) {
  if (call.has_lists()) return check_lists(call, rank, size, transport);
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

bool on_host(const Tensor& t, Device where) {  // perhaps on different logical devices
  return t.device().is_cpu() && where.is_cpu();
}

/// A tensor that consists of one block per rank, in memory that the transport accepts. Uses the tensor's own
/// memory if each block, or each of its `rows` rows, is contiguous there; otherwise a copy of all blocks. A
/// transport of a CUDA device also needs blocks without gaps: NCCL's calls depend on that, and they must not
/// depend on one rank's strides.
class RankBlocks {
 public:
  RankBlocks(const Tensor& t, int size, std::int64_t rows, Fill fill, Device where, Deadline deadline) {
    std::optional<RowLayout> found;
    const bool host = on_host(t, where), direct = fill != Fill::copy;
    if (direct && host && rows > 1) found = row_layout(t, rows);
    else if (direct && (host || (t.device() == where && t.is_contiguous())))
      if (const auto pitch = block_pitch(t, size)) found = RowLayout{.pitch = *pitch};
    const std::size_t block = t.nbytes() / static_cast<std::size_t>(size);
    if (found) {
      layout_ = *found;
    } else {
      staged_.emplace(t, fill, where, deadline);
      layout_ = {.pitch = block};
      if (host) layout_.rows = static_cast<std::size_t>(rows), layout_.row_pitch = block / layout_.rows;
    }
    data_ = found ? t.raw_data() : staged_->data();
  }
  void* data() const { return data_; }
  const RowLayout& layout() const { return layout_; }
  void store() const {
    if (staged_) staged_->store();
  }

 private:
  std::optional<Staged> staged_;
  void* data_ = nullptr;
  RowLayout layout_;
};

/// A tensor that an all_to_all sends or receives, in memory that the transport accepts: its own memory if it
/// is contiguous or consists of rows, otherwise a copy.
class RowsOfTensor {
 public:
  RowsOfTensor(const Tensor& t, Fill fill, Device where, Deadline deadline) {
    if (t.numel() == 0) return;
    std::optional<RowLayout> found;
    if (fill != Fill::copy && on_host(t, where)) found = row_layout(t);
    if (found) layout_ = *found;
    else staged_.emplace(t, fill, where, deadline);
    data_ = found ? t.raw_data() : staged_->data();
  }
  void* data() const { return data_; }
  const RowLayout& layout() const { return layout_; }
  void store() const {
    if (staged_) staged_->store();
  }

 private:
  std::optional<Staged> staged_;
  void* data_ = nullptr;
  RowLayout layout_;
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
    if (call_.op == Op::all_to_all) return false;
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

void exchange_lists(const Collective& call, Backend& backend, Deadline deadline) {
  const SharedInputs shared(call);
  std::deque<RowsOfTensor> ins, outs;
  std::vector<ExchangePart> parts;
  for (std::size_t i = 0; i < call.ins.size(); ++i) {
    const Fill read = shared.must_copy(i, backend.rank(), backend.size()) ? Fill::copy : Fill::yes;
    const RowsOfTensor& in = ins.emplace_back(call.ins[i], read, backend.device(), deadline);
    const RowsOfTensor& out = outs.emplace_back(call.outs[i], Fill::no, backend.device(), deadline);
    parts.push_back({in.data(), out.data(), call.ins[i].nbytes(), call.outs[i].nbytes(), in.layout().rows,
                     in.layout().row_pitch, out.layout().rows, out.layout().row_pitch});
  }
  backend.all_to_all(parts, deadline);
  for (const RowsOfTensor& out : outs) out.store();
}

void run_lists(const Collective& call, Backend& backend, Deadline deadline) {
  if (call.op == Op::all_to_all) return exchange_lists(call, backend, deadline);
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
    std::int64_t rows = 1;
    for (int d = 0; d < call.dim; ++d) rows *= call.parts()[i].sizes()[d];
    const Fill read = shared.must_copy(i, backend.rank(), size) ? Fill::copy : Fill::yes;
    const RankBlocks& whole =
        wholes.emplace_back(gathers ? out : in, size, rows, gathers ? Fill::no : read, where, deadline);
    const Staged& part = parts.emplace_back(gathers ? in : out, gathers ? read : Fill::no, where, deadline);
    const auto& [pitch, count, row_pitch] = whole.layout();
    if (gathers) gather_parts.push_back({part.data(), whole.data(), in.nbytes(), pitch, count, row_pitch});
    else
      scatter_parts.push_back({whole.data(), part.data(), out.numel(), out.dtype(), pitch, count, row_pitch});
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
