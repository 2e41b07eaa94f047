// Instructions of several lanes: shuffles, votes, matches, reductions.
#include <algorithm>

#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

void members(Warp& w, const Ref& r, u32 (&to)[32]) { std::copy_n(w.row<const u32>(r), 32, to); }

enum Mode : u32 { kUp, kDown, kButterfly, kIndex };

void run_shuffle(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);  // d, p, a, b, c, the members
  u32 named[32];
  members(w, o[5], named);
  w.collective(c, mask, named, [&](u32 lanes) {
    u32 a[32], values[32] = {}, inside = 0;
    std::copy_n(w.row<const u32>(o[2]), 32, a);
    for (u32 m = lanes; m != 0; m &= m - 1) {
      const int lane = std::countr_zero(m);
      const auto b = static_cast<int>(w.row<const u32>(o[3])[lane] & 31);
      const u32 control = w.row<const u32>(o[4])[lane];
      const auto clamp = static_cast<int>(control & 31), segment = static_cast<int>((control >> 8) & 31);
      const int last = (lane & segment) | (clamp & ~segment & 31), first = lane & segment;
      int from = 0;
      bool valid = false;
      switch (c.flags) {
        case kUp:
          valid = (from = lane - b) >= last;
          break;
        case kDown:
          valid = (from = lane + b) <= last;
          break;
        case kButterfly:
          valid = (from = lane ^ b) <= last;
          break;
        default:
          valid = (from = first | (b & ~segment)) <= last;
      }
      if (!valid) from = lane;
      if (((lanes >> from) & 1) == 0)
        w.fail(c, lane,
               "reads lane " + std::to_string(from) +
                   (((named[lane] >> from) & 1) == 0
                        ? ", which the mask " + hex(named[lane]) + " does not name"
                        : std::string(", which has ended or does not exist: the value is undefined")));
      values[lane] = a[from];
      inside |= static_cast<u32>(valid) << lane;
    }
    w.write(o[0], values, lanes);
    w.set_predicate(o[1], inside, lanes);
  });
}

enum Vote : u32 { kAll, kAny, kUniform, kBallot };
void run_vote(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u32 named[32];
  members(w, o[2], named);
  w.collective(c, mask, named, [&](u32 lanes) {
    const u32 votes = w.predicate(o[1]) & lanes;
    if (c.flags == kBallot) {
      u32 values[32];
      std::fill_n(values, 32, votes);
      w.write(o[0], values, lanes);
      return;
    }
    const bool result = c.flags == kAll   ? votes == lanes
                        : c.flags == kAny ? votes != 0
                                          : votes == lanes || votes == 0;
    w.set_predicate(o[0], result ? kAllLanes : 0, lanes);
  });
}

template <class T>
void run_match(Warp& w, const Code& c, u32 mask) {  // match.any if the flags are 0, otherwise match.all
  const Ref* const o = w.operands(c);
  const Ref source = c.flags == 0 ? o[1] : o[2];
  u32 named[32];
  members(w, c.flags == 0 ? o[2] : o[3], named);
  w.collective(c, mask, named, [&](u32 lanes) {
    const T* const a = w.row<const T>(source);
    u32 values[32] = {};
    bool same = true;
    for (u32 m = lanes; m != 0; m &= m - 1) {
      const int lane = std::countr_zero(m);
      for (u32 n = lanes; n != 0; n &= n - 1)
        if (const int other = std::countr_zero(n); a[other] == a[lane]) values[lane] |= 1u << other;
      same = same && values[lane] == lanes;
    }
    if (c.flags != 0) {
      std::fill_n(values, 32, same ? lanes : 0);
      w.set_predicate(o[1], same ? kAllLanes : 0, lanes);
    }
    w.write(o[0], values, lanes);
  });
}

template <class T, class Op>
void run_reduce(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u32 named[32];
  members(w, o[2], named);
  w.collective(c, mask, named, [&](u32 lanes) {
    const T* const a = w.row<const T>(o[1]);
    T result = a[std::countr_zero(lanes)], values[32];
    for (u32 m = lanes & (lanes - 1); m != 0; m &= m - 1) result = Op()(result, a[std::countr_zero(m)]);
    std::fill_n(values, 32, result);
    w.write(o[0], values, lanes);
  });
}
struct Add {
  u32 operator()(u32 a, u32 b) const { return a + b; }
};
struct And {
  u32 operator()(u32 a, u32 b) const { return a & b; }
};
struct Or {
  u32 operator()(u32 a, u32 b) const { return a | b; }
};
struct Xor {
  u32 operator()(u32 a, u32 b) const { return a ^ b; }
};
struct Minimum {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

void run_sync(Warp& w, const Code& c, u32 mask) {
  u32 named[32];
  members(w, w.operands(c)[0], named);
  w.collective(c, mask, named, [&](u32 lanes) { w.synchronise_lanes(lanes); });
}
void run_active(Warp& w, const Code& c, u32 mask) {
  u32 values[32];
  std::fill_n(values, 32, mask);
  w.write(w.operands(c)[0], values, mask);
}

}  // namespace

void add_collective(Table& t) {
  t["shfl.sync.up.b32"] = {&run_shuffle, "wq=wwww", kUp};
  t["shfl.sync.down.b32"] = {&run_shuffle, "wq=wwww", kDown};
  t["shfl.sync.bfly.b32"] = {&run_shuffle, "wq=wwww", kButterfly};
  t["shfl.sync.idx.b32"] = {&run_shuffle, "wq=wwww", kIndex};
  t["vote.sync.all.pred"] = {&run_vote, "p=pw", kAll};
  t["vote.sync.any.pred"] = {&run_vote, "p=pw", kAny};
  t["vote.sync.uni.pred"] = {&run_vote, "p=pw", kUniform};
  t["vote.sync.ballot.b32"] = {&run_vote, "w=pw", kBallot};
  t["match.any.sync.b32"] = {&run_match<u32>, "w=ww", 0};
  t["match.any.sync.b64"] = {&run_match<u64>, "w=lw", 0};
  t["match.all.sync.b32"] = {&run_match<u32>, "wq=ww", 1};
  t["match.all.sync.b64"] = {&run_match<u64>, "wq=lw", 1};
  for (const char* type : {"u32", "s32"})
    t[std::string("redux.sync.add.") + type] = {&run_reduce<u32, Add>, "w=ww", 0};
  t["redux.sync.min.u32"] = {&run_reduce<u32, Minimum>, "w=ww", 0};
  t["redux.sync.max.u32"] = {&run_reduce<u32, Maximum>, "w=ww", 0};
  t["redux.sync.min.s32"] = {&run_reduce<i32, Minimum>, "w=ww", 0};
  t["redux.sync.max.s32"] = {&run_reduce<i32, Maximum>, "w=ww", 0};
  t["redux.sync.and.b32"] = {&run_reduce<u32, And>, "w=ww", 0};
  t["redux.sync.or.b32"] = {&run_reduce<u32, Or>, "w=ww", 0};
  t["redux.sync.xor.b32"] = {&run_reduce<u32, Xor>, "w=ww", 0};
  t["bar.warp.sync"] = {&run_sync, "w", 0};
  t["activemask.b32"] = {&run_active, "w=", 0};
}

}  // namespace tapestry::ptx
