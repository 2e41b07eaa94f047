// setp: comparisons of integers and of numbers, ordered and unordered.
#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

struct Eq {
  template <class T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct Ne {
  template <class T>
  bool operator()(T a, T b) const {
    return a < b || a > b;
  }
};  // false for NaN
struct Lt {
  template <class T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
struct Le {
  template <class T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Gt {
  template <class T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};
struct Ge {
  template <class T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};
struct Equ {
  template <class T>
  bool operator()(T a, T b) const {
    return !(a < b || a > b);
  }
};
struct Neu {
  template <class T>
  bool operator()(T a, T b) const {
    return !(a == b);
  }
};
struct Ltu {
  template <class T>
  bool operator()(T a, T b) const {
    return !(a >= b);
  }
};
struct Leu {
  template <class T>
  bool operator()(T a, T b) const {
    return !(a > b);
  }
};
struct Gtu {
  template <class T>
  bool operator()(T a, T b) const {
    return !(a <= b);
  }
};
struct Geu {
  template <class T>
  bool operator()(T a, T b) const {
    return !(a < b);
  }
};
struct Num {
  template <class T>
  bool operator()(T a, T b) const {
    return a == a && b == b;
  }
};
struct Nan {
  template <class T>
  bool operator()(T a, T b) const {
    return a != a || b != b;
  }
};

enum Combination : u32 { kAlone, kAnd, kOr, kXor, kFlush = 4 };

// p = (a op b) bool c, q = !(a op b) bool c.
template <class Op, class T>
void run_compare(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const T *const a = w.row<const T>(o[2]), *const b = w.row<const T>(o[3]);
  u32 bits = 0;
  if constexpr (std::is_same_v<T, float>) {
    if ((c.flags & kFlush) != 0) {
      for (int lane = 0; lane < 32; ++lane)
        bits |= static_cast<u32>(Op()(flush(a[lane]), flush(b[lane]))) << lane;
    } else {
      for (int lane = 0; lane < 32; ++lane) bits |= static_cast<u32>(Op()(a[lane], b[lane])) << lane;
    }
  } else {
    for (int lane = 0; lane < 32; ++lane) bits |= static_cast<u32>(Op()(a[lane], b[lane])) << lane;
  }
  u32 other = ~bits;
  if ((c.flags & 3) != kAlone) {
    const u32 third = w.predicate(o[4]);
    const auto combine = [&](u32 x) {
      return (c.flags & 3) == kAnd ? x & third : (c.flags & 3) == kOr ? x | third : x ^ third;
    };
    bits = combine(bits);
    other = combine(other);
  }
  w.set_predicate(o[0], bits, mask);
  w.set_predicate(o[1], other, mask);
}

template <class Op, class T>
void add_one(Table& t, const std::string& name, const std::string& type) {
  const std::string two(2, letter<T>());
  const bool single = std::is_same_v<T, float>;
  for (const u32 ftz : {0u, u32{kFlush}}) {
    if (ftz != 0 && !single) break;
    const std::string tail = (ftz != 0 ? ".ftz." : ".") + type;
    t["setp." + name + tail] = {&run_compare<Op, T>, "pq=" + two, kAlone | ftz};
    t["setp." + name + ".and" + tail] = {&run_compare<Op, T>, "pq=" + two + "p", kAnd | ftz};
    t["setp." + name + ".or" + tail] = {&run_compare<Op, T>, "pq=" + two + "p", kOr | ftz};
    t["setp." + name + ".xor" + tail] = {&run_compare<Op, T>, "pq=" + two + "p", kXor | ftz};
  }
}
template <class T>
void add_ordered(Table& t, const std::string& type) {
  add_one<Eq, T>(t, "eq", type);
  add_one<Ne, T>(t, "ne", type);
  add_one<Lt, T>(t, "lt", type);
  add_one<Le, T>(t, "le", type);
  add_one<Gt, T>(t, "gt", type);
  add_one<Ge, T>(t, "ge", type);
}
template <class T>
void add_bits(Table& t, const std::string& bits) {
  add_ordered<T>(t, "u" + bits);
  add_ordered<std::make_signed_t<T>>(t, "s" + bits);
  add_one<Lt, T>(t, "lo", "u" + bits);
  add_one<Le, T>(t, "ls", "u" + bits);
  add_one<Gt, T>(t, "hi", "u" + bits);
  add_one<Ge, T>(t, "hs", "u" + bits);
  add_one<Eq, T>(t, "eq", "b" + bits);
  add_one<Ne, T>(t, "ne", "b" + bits);
}
template <class T>
void add_numbers(Table& t, const std::string& type) {
  add_ordered<T>(t, type);
  add_one<Equ, T>(t, "equ", type);
  add_one<Neu, T>(t, "neu", type);
  add_one<Ltu, T>(t, "ltu", type);
  add_one<Leu, T>(t, "leu", type);
  add_one<Gtu, T>(t, "gtu", type);
  add_one<Geu, T>(t, "geu", type);
  add_one<Num, T>(t, "num", type);
  add_one<Nan, T>(t, "nan", type);
}

}  // namespace

void add_compare(Table& t) {
  add_bits<u16>(t, "16");
  add_bits<u32>(t, "32");
  add_bits<u64>(t, "64");
  add_numbers<float>(t, "f32");
  add_numbers<double>(t, "f64");
}

}  // namespace tapestry::ptx
