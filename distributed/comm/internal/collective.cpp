#include "tapestry/distributed/comm/internal/collective.h"

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

void check_parts(const char* op, const Tensor& whole, const char* whole_is, const Tensor& part,
                 const char* part_is, int size) {
  check<TypeError>(whole.dtype() == part.dtype(), "[", op, "] the output is ",
                   whole_is[0] == 'o' ? whole.dtype() : part.dtype(), " and the input ",
                   whole_is[0] == 'o' ? part.dtype() : whole.dtype(), "; use one dtype");
  check(whole.numel() == part.numel() * size, "[", op, "] the ", whole_is, " of shape ", whole.sizes(),
        " has ", whole.numel(), " elements, and ", size, " ranks with a ", part_is, " of shape ",
        part.sizes(), " need ", part.numel() * size, "; make it ", size, " times as large");
}

}  // namespace

Device Collective::device(Device transport) const {
  if (transport.is_cuda()) return transport;
  for (const Tensor* t : {&in, &out})
    if (t->defined() && t->device().is_cuda()) return t->device();
  return kCPU;
}

const Tensor& Collective::part() const {
  return op == Op::reduce_scatter || op == Op::scatter || op == Op::recv ? out : in;
}

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

void check_collective(const Collective& call, int rank, int size, Device transport) {
  const char* const op = op_name(call.op);
  const bool at_root = rank == call.peer;
  switch (call.op) {
    case Op::all_reduce:
    case Op::broadcast:
    case Op::reduce:
      check_written(op, call.in, "tensor");
      break;
    case Op::all_gather:
      check_written(op, call.out, "output");
      check_tensor(op, call.in, "input");
      check_parts(op, call.out, "output", call.in, "input", size);
      break;
    case Op::gather:
      check_tensor(op, call.in, "input");
      if (at_root) check_written(op, call.out, "output");
      if (at_root) check_parts(op, call.out, "output", call.in, "input", size);
      break;
    case Op::reduce_scatter:
      check_written(op, call.out, "output");
      check_tensor(op, call.in, "input");
      check_parts(op, call.in, "input", call.out, "output", size);
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
    case Op::barrier:
    case Op::new_group:
      return;
  }
  const Device device = call.device(transport);
  for (const Tensor* t : {&call.in, &call.out})
    check<DeviceError>(!t->defined() || t->device().is_cpu() || t->device() == device, "[", op,
                       "] a tensor is on ", t->defined() ? t->device() : kCPU, ", but ",
                       transport.is_cuda() ? "this group uses " : "the other tensor is on ", device,
                       "; move it there with .to()");
  if (call.op == Op::all_reduce || call.op == Op::reduce || call.op == Op::reduce_scatter) {
    check<TypeError>(contains(kAllDTypes, call.in.dtype()), "[", op, "] ", call.in.dtype(),
                     " tensors cannot be reduced; convert them to int32 with to()");
    check<TypeError>(call.reduce != ReduceOp::mean || is_floating(call.in.dtype()), "[", op, "] the mean of ",
                     call.in.dtype(), " is not defined; use the sum, or convert to a floating dtype");
  }
  if (call.op == Op::broadcast || call.op == Op::reduce || call.op == Op::gather || call.op == Op::scatter)
    check<IndexError>(call.peer >= 0 && call.peer < size, "[", op, "] root ", call.peer, " of a group of ",
                      size, " ranks; pass one of 0 to ", size - 1);
  if (call.op == Op::send || call.op == Op::recv) {
    check<IndexError>(call.peer >= 0 && call.peer < size, "[", op, "] peer ", call.peer, " of a group of ",
                      size, " ranks; pass one of 0 to ", size - 1);
    check(!at_root, "[", op, "] peer ", call.peer, " is this rank itself; copy the tensor instead");
  }
}

void run_collective(const Collective& call, Backend& backend, Deadline deadline) {
  using Fill = Staged::Fill;
  if (call.op == Op::barrier) return backend.barrier(deadline);
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
    case Op::all_gather:
      backend.all_gather(from, to, part.nbytes(), deadline);
      break;
    case Op::reduce_scatter:
      backend.reduce_scatter(from, to, part.numel(), dtype, call.reduce, deadline);
      break;
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
