// Works of streams that touch the same bytes must be ordered; launches report what they touch.
#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using u64 = std::uint64_t;

namespace {

constexpr u64 kAt = 0x1000;

struct Streams {
  StreamOrder order;
  StreamOrder::Stream a = order.add_stream("stream a"), b = order.add_stream("stream b");
};

}  // namespace

TEST_CASE("streams, events and the host order works") {
  Streams s;
  StreamOrder& o = s.order;
  const auto first = o.enqueue(s.a, "first"), second = o.enqueue(s.a, "second"),
             other = o.enqueue(s.b, "other");
  CHECK(o.ordered(first, second));
  CHECK(!o.ordered(first, other));
  const auto event = o.record(s.a);
  const auto third = o.enqueue(s.a, "third");
  o.wait(s.b, event);
  const auto behind = o.enqueue(s.b, "behind the event");
  CHECK(o.ordered(second, behind));
  CHECK(!o.ordered(third, behind));
  // The host waits for stream a; what it enqueues then is ordered behind all of it.
  o.wait(StreamOrder::kHost, o.record(s.a));
  const auto host = o.enqueue(StreamOrder::kHost, "the host reads");
  CHECK(o.ordered(third, host));
  CHECK(!o.ordered(behind, host));
  const auto last = o.enqueue(s.b, "last");
  CHECK(o.ordered(third, last));
  CHECK(o.ordered(host, last));
  // Events pass on what their stream had waited for.
  const auto c = o.add_stream("stream c");
  o.wait(c, o.record(s.b));
  CHECK(o.ordered(first, o.enqueue(c, "on c")));
}

TEST_CASE("unordered works must not touch the same bytes") {
  Streams s;
  StreamOrder& o = s.order;
  const auto write = o.enqueue(s.a, "memset"), read = o.enqueue(s.b, "copy");
  o.access(write, kAt, 100, true);
  CHECK_NOTHROW(o.access(read, kAt + 100, 28, false));
  CHECK_THROWS_WITH(o.access(read, kAt + 96, 4, false, [] { return std::string("at k.cu:7"); }),
                    ContainsSubstring("copy (work 1 of stream b) reads 4 bytes at 0x1060") &&
                        ContainsSubstring("memset (work 1 of stream a) writes: nothing orders the two") &&
                        ContainsSubstring("at k.cu:7"));
  // In whatever order they are executed.
  CHECK_THROWS_AS(o.access(o.enqueue(s.a, "late"), kAt + 100, 1, true), OrderError);
  // Two reads are no conflict. A write must come after all of them.
  o.forget(kAt, 200);
  CHECK(o.ranges() == 0);
  const auto r1 = o.enqueue(s.a, "read"), r2 = o.enqueue(s.b, "read");
  o.access(r1, kAt, 64, false);
  o.access(r2, kAt + 32, 64, false);
  CHECK(o.ranges() == 3);
  CHECK_THROWS_WITH(o.access(o.enqueue(s.b, "write"), kAt + 40, 8, true),
                    ContainsSubstring("which read (work"));
  o.wait(s.b, o.record(s.a));
  CHECK_NOTHROW(o.access(o.enqueue(s.b, "write"), kAt, 96, true));
  CHECK(o.ranges() == 1);
}

TEST_CASE("memory is not used behind its free, nor freed or taken out of order") {
  Streams s;
  StreamOrder& o = s.order;
  o.access(o.enqueue(s.a, "launch"), kAt, 64, true);
  CHECK_THROWS_WITH(o.free(o.enqueue(s.b, "cudaFreeAsync"), kAt, 64),
                    ContainsSubstring("cudaFreeAsync (work 1"));
  o.free(o.enqueue(s.a, "cudaFreeAsync"), kAt, 64);
  CHECK_THROWS_WITH(o.access(o.enqueue(s.a, "launch"), kAt + 8, 4, false),
                    ContainsSubstring("used after its free"));
  CHECK_THROWS_WITH(o.free(o.enqueue(s.a, "again"), kAt, 64), ContainsSubstring("freed twice"));
  CHECK_THROWS_AS(o.allocate(o.enqueue(s.b, "cudaMallocAsync"), kAt, 32), OrderError);
  o.wait(s.b, o.record(s.a));
  CHECK_NOTHROW(o.allocate(o.enqueue(s.b, "cudaMallocAsync"), kAt, 32));
  CHECK_NOTHROW(o.access(o.enqueue(s.b, "launch"), kAt, 32, true));
  CHECK_THROWS_AS(o.access(o.enqueue(s.a, "launch"), kAt, 32, true), OrderError);
  CHECK_THROWS_AS(o.access(o.enqueue(s.b, "launch"), kAt, 64, false), OrderError);  // the rest is still freed
}

TEST_CASE("launches report what they touch, with the instruction") {
  Machine m;
  m.load(R"(.version 9.0
.target sm_90
.address_size 64
.file 1 "k.cu"
.visible .entry fill(.param .u64 p, .param .u32 n)
{
.reg .pred %p<2>;
.reg .b32 %r<4>;
.reg .b64 %rd<4>;
ld.param.u64 %rd0, [p];
ld.param.u32 %r1, [n];
mov.u32 %r0, %tid.x;
setp.ge.u32 %p0, %r0, %r1;
@%p0 exit;
mul.wide.u32 %rd1, %r0, 4;
add.s64 %rd0, %rd0, %rd1;
.loc 1 12 3
st.global.u32 [%rd0], %r0;
ret;
}
)");
  Streams s;
  StreamOrder& o = s.order;
  const u64 p = m.memory().allocate(400);
  const auto fill = [&](StreamOrder::Stream stream, u64 at, unsigned n) {
    m.run_as(&o, o.enqueue(stream, "launch of 'fill'"));
    m.launch("fill", {1}, {64}, 0, at, n);
  };
  fill(s.a, p, 50);
  fill(s.b, p + 200, 50);  // the other half
  CHECK_THROWS_WITH(fill(s.b, p + 196, 1),
                    ContainsSubstring("launch of 'fill' (work 2 of stream b) writes 4 bytes") &&
                        ContainsSubstring("launch of 'fill' (work 1 of stream a) writes") &&
                        ContainsSubstring("kernel 'fill', k.cu:12 (st.global.u32)") &&
                        ContainsSubstring("thread (0, 0, 0)"));
  o.wait(s.b, o.record(s.a));
  CHECK_NOTHROW(fill(s.b, p + 196, 1));
  m.run_as(nullptr, StreamOrder::kNone);
  m.launch("fill", {1}, {64}, 0, p, 1u);  // not tracked
}

TEST_CASE("accesses to freed memory say so") {
  Machine m;
  m.load(
      ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b32 "
      "%r<2>;\n.reg .b64 "
      "%rd<2>;\nld.param.u64 %rd0, [p];\nld.global.u32 %r0, [%rd0+8];\nret;\n}\n");
  const u64 p = m.memory().allocate(64);
  m.memory().remove(p, "cudaFree");
  CHECK_THROWS_WITH(
      m.launch("k", {1}, {1}, 0, p),
      ContainsSubstring("byte 8 of memory that was freed by cudaFree, an allocation of 64 bytes"));
  CHECK(m.memory().allocate(64) != p);  // freed addresses are not used again at once
}
