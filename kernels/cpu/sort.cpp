// CPU kernels that sort rows and select their first elements. An element becomes an Entry: its key
// (kernels/sort_key.h) and its position, which compare as one number. No two entries of a row are equal, so
// any algorithm that sorts them is stable, and the result does not depend on the number of threads. Only
// encode() depends on the dtype; the algorithms are compiled once for each of the two types of Entry.
#include "tapestry/kernels/ops/sort.h"

#include <algorithm>
#include <array>
#include <compare>
#include <memory>
#include <utility>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/sort_key.h"

namespace tapestry::kernels::cpu {
namespace {

/// For elements of up to 4 bytes: the key is in the upper half and the position in the lower half.
struct Narrow {
  std::uint64_t bits;
  static constexpr int kDigits = 4;
  static Narrow of(std::uint64_t key, std::int64_t position) {
    return {key << 32 | static_cast<std::uint64_t>(position)};
  }
  std::int64_t position() const { return static_cast<std::int64_t>(bits & 0xffffffff); }
  bool key_is(std::uint64_t key) const { return bits >> 32 == key; }
  unsigned digit(int d) const { return bits >> (32 + 8 * d) & 255; }
  auto operator<=>(const Narrow&) const = default;
};
/// For elements of 8 bytes, and for rows of more than 2^31 elements.
struct Wide {
  std::uint64_t key, at;
  static constexpr int kDigits = 8;
  static Wide of(std::uint64_t key, std::int64_t position) {
    return {key, static_cast<std::uint64_t>(position)};
  }
  std::int64_t position() const { return static_cast<std::int64_t>(at); }
  bool key_is(std::uint64_t other) const { return key == other; }
  unsigned digit(int d) const { return key >> (8 * d) & 255; }
  auto operator<=>(const Wide&) const = default;
};

/// The key without the position, for integers of which only the values are wanted: elements with equal keys
/// are equal.
template <class Key>
struct KeyOnly {
  Key key;
  static constexpr int kDigits = sizeof(Key);
  static KeyOnly of(std::uint64_t key, std::int64_t) { return {static_cast<Key>(key)}; }
  unsigned digit(int d) const { return key >> (8 * d) & 255; }
  auto operator<=>(const KeyOnly&) const = default;
};
/// The integer that has this key: the inverse of sort_key().
template <class T>
T value_of(SortKey<T> key) {
  if constexpr (std::is_signed_v<T>) key ^= SortKey<T>{1} << (8 * sizeof key - 1);
  return static_cast<T>(key);
}

template <class Entry>
using Buffer = std::unique_ptr<Entry[]>;
template <class Entry>
Buffer<Entry> buffer_of(std::int64_t n) {
  return std::make_unique_for_overwrite<Entry[]>(static_cast<std::size_t>(n));
}

/// Writes the entries of elements [begin, end) of the row that starts at element `row` of x. The keys are
/// inverted for the descending order.
template <class T, class Entry>
void encode(const void* x, std::int64_t row, std::int64_t begin, std::int64_t end, bool descending,
            Entry* to) {
  const T* const from = static_cast<const T*>(x) + row;
  using Key = SortKey<Compute<T>>;
  const Key flip = descending ? ~Key{0} : Key{0};
  for (std::int64_t i = begin; i < end; ++i)
    *to++ = Entry::of(static_cast<Key>(sort_key(load(from[i])) ^ flip), i);
}

/// The rows to order, and the function that encodes their elements.
template <class Entry>
struct Input {
  std::int64_t rows, n;
  const void* x;
  bool descending;
  void (*encode)(const void*, std::int64_t, std::int64_t, std::int64_t, bool, Entry*);
  std::uint64_t nan_key;

  void read(std::int64_t row, std::int64_t begin, std::int64_t end, Entry* to) const {
    encode(x, row * n, begin, end, descending, to);
  }
};

// ---- sorting

/// Sorts n entries with `scratch` as a second buffer of n entries. The result is in `a`. Long runs are sorted
/// by radix: by 8 bits of the key at a time, from the lowest. Positions need no passes, because the entries
/// come in order of position and every pass is stable.
template <class Entry>
void sort_run(Entry* a, Entry* scratch, std::int64_t n) {
  constexpr std::int64_t kFewest = 128 * Entry::kDigits;
  if (n < kFewest) return std::sort(a, a + n);
  std::array<std::array<std::int64_t, 256>, Entry::kDigits> counts{};
  for (std::int64_t i = 0; i < n; ++i)
    for (int d = 0; d < Entry::kDigits; ++d) ++counts[static_cast<std::size_t>(d)][a[i].digit(d)];
  Entry *from = a, *to = scratch;
  for (int d = 0; d < Entry::kDigits; ++d) {
    auto& count = counts[static_cast<std::size_t>(d)];
    if (count[from[0].digit(d)] == n) continue;  // this pass would change nothing
    std::int64_t start = 0;
    for (std::int64_t& c : count) start += std::exchange(c, start);
    for (std::int64_t i = 0; i < n; ++i) to[count[from[i].digit(d)]++] = from[i];
    std::swap(from, to);
  }
  if (from != a) std::copy_n(from, n, a);
}

/// Returns how many of the first k elements of the merged runs a and b come from a.
template <class Entry>
std::int64_t merge_split(const Entry* a, std::int64_t na, const Entry* b, std::int64_t nb, std::int64_t k) {
  std::int64_t low = std::max<std::int64_t>(0, k - nb), high = std::min(k, na);
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (a[middle] < b[k - 1 - middle]) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// Sorts one long row with all threads: each sorts a piece, then pairs of pieces are merged. Returns the
/// buffer that has the result, a or b.
template <class Entry>
Entry* sort_with_threads(Entry* a, Entry* b, std::int64_t n) {
  const std::int64_t pieces = compute_threads(), piece = (n + pieces - 1) / pieces;
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin * piece; at < std::min(n, end * piece); at += piece)
      sort_run(a + at, b + at, std::min(piece, n - at));
  });
  for (std::int64_t run = piece; run < n; run *= 2, std::swap(a, b))
    for (std::int64_t start = 0; start < n; start += 2 * run) {
      const std::int64_t na = std::min(run, n - start), nb = std::min(run, n - start - na);
      const Entry *const left = a + start, *const right = left + na;
      parallel_for(na + nb, kGrain, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t i = merge_split(left, na, right, nb, begin),
                           j = merge_split(left, na, right, nb, end);
        std::merge(left + i, left + j, right + (begin - i), right + (end - j), b + start + begin);
      });
    }
  return a;
}

// ---- selection

/// Collects the k smallest entries. Its buffer has room for more, about 2 k. When the buffer is full, only
/// the k smallest entries in it stay. So the cost is linear in the number of entries.
template <class Entry>
class Smallest {
 public:
  explicit Smallest(std::int64_t k) : k_(k), capacity_(k + std::max<std::int64_t>(k, 64)) {
    kept_.reserve(static_cast<std::size_t>(capacity_));
  }
  void take(const Entry* entries, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (limited_ && !(entries[i] < limit_)) continue;
      kept_.push_back(entries[i]);
      if (static_cast<std::int64_t>(kept_.size()) == capacity_) shrink();
    }
  }
  /// Takes elements [begin, end) of a row.
  void take(const Input<Entry>& input, std::int64_t row, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kBlock = 1024;
    Entry block[kBlock];
    for (; begin < end; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, end - begin);
      input.read(row, begin, begin + count, block);
      take(block, count);
    }
  }
  /// Returns the k smallest entries. The largest of them is the last one; the others have no particular
  /// order. At least k entries must have been taken.
  std::vector<Entry>& finish() {
    shrink();
    return kept_;
  }

 private:
  void shrink() {
    std::nth_element(kept_.begin(), kept_.begin() + (k_ - 1), kept_.end());
    kept_.resize(static_cast<std::size_t>(k_));
    limit_ = kept_.back();
    limited_ = true;
  }

  const std::int64_t k_, capacity_;
  std::vector<Entry> kept_;
  Entry limit_{};
  bool limited_ = false;
};

/// Returns the k smallest entries of a row as Smallest::finish() does. If `shared`, all threads work on this
/// row.
template <class Entry>
std::vector<Entry> smallest(const Input<Entry>& input, std::int64_t row, std::int64_t k, bool shared) {
  Smallest<Entry> result(k);
  const std::int64_t pieces = shared ? compute_threads() : 1, piece = (input.n + pieces - 1) / pieces;
  if (pieces == 1 || k > piece / 2) {
    result.take(input, row, 0, input.n);
    return std::move(result.finish());
  }
  std::vector<std::vector<Entry>> parts(static_cast<std::size_t>(pieces));
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      if (p * piece >= input.n) continue;
      Smallest<Entry> part(std::min(k, input.n - p * piece));
      part.take(input, row, p * piece, std::min(input.n, (p + 1) * piece));
      parts[static_cast<std::size_t>(p)] = std::move(part.finish());
    }
  });
  for (const auto& part : parts) result.take(part.data(), static_cast<std::int64_t>(part.size()));
  return std::move(result.finish());
}

// ---- kernels

/// Copies x[row, entry.position()] to values, if values is not null, and the positions to indices.
template <class Entry>
struct Output {
  std::int64_t n;
  const void* x;
  void* values;
  std::int64_t* indices;
  std::size_t size;  // of an element

  template <class Bits>
  void copy(std::int64_t row, const Entry* entries, std::int64_t count, std::int64_t to) const {
    const Bits* const from = static_cast<const Bits*>(x) + row * n;
    Bits* const out = static_cast<Bits*>(values) + to;
    for (std::int64_t i = 0; i < count; ++i) out[i] = from[entries[i].position()];
  }
  /// Writes `count` results of a row, beginning at element `to` of values and indices.
  void write(std::int64_t row, const Entry* entries, std::int64_t count, std::int64_t to) const {
    for (std::int64_t i = 0; i < count; ++i) indices[to + i] = entries[i].position();
    if (!values) return;
    if (size == 1) copy<std::uint8_t>(row, entries, count, to);
    else if (size == 2) copy<std::uint16_t>(row, entries, count, to);
    else if (size == 4) copy<std::uint32_t>(row, entries, count, to);
    else copy<std::uint64_t>(row, entries, count, to);
  }
};

/// Writes the elements that the keys stand for.
template <class T>
struct Values {
  using Entry = KeyOnly<SortKey<T>>;
  T* values;
  SortKey<T> flip;
  void write(std::int64_t, const Entry* entries, std::int64_t count, std::int64_t to) const {
    for (std::int64_t i = 0; i < count; ++i)
      values[to + i] = value_of<T>(static_cast<SortKey<T>>(entries[i].key ^ flip));
  }
};

/// Calls f(row, shared) for each row. A few long rows are visited one after another, and f may use all
/// threads for each; otherwise threads divide the rows.
template <class F>
void for_rows(std::int64_t rows, std::int64_t n, const F& f) {
  if (rows < compute_threads() && n >= 2 * kGrain) {
    for (std::int64_t row = 0; row < rows; ++row) f(row, true);
  } else {
    parallel_for(rows, grain_of(8 * n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) f(row, false);
    });
  }
}

template <class Entry, class Out>
void sort_rows(const Input<Entry>& input, const Out& out, std::int64_t k) {
  const std::int64_t n = input.n;
  for_rows(input.rows, n, [&](std::int64_t row, bool shared) {
    if (k > n / 4) {
      const Buffer<Entry> a = buffer_of<Entry>(n), b = buffer_of<Entry>(n);
      Entry* sorted = a.get();
      if (shared) {
        parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
          input.read(row, begin, end, a.get() + begin);
        });
        sorted = sort_with_threads(a.get(), b.get(), n);
        parallel_for(k, kGrain, [&](std::int64_t begin, std::int64_t end) {
          out.write(row, sorted + begin, end - begin, row * k + begin);
        });
        return;
      }
      input.read(row, 0, n, sorted);
      sort_run(sorted, b.get(), n);
      out.write(row, sorted, k, row * k);
    } else {
      std::vector<Entry> first = smallest(input, row, k, shared);
      std::sort(first.begin(), first.end());
      out.write(row, first.data(), k, row * k);
    }
  });
}

template <class Entry>
void kth_rows(const Input<Entry>& input, const Output<Entry>& out, std::int64_t k, bool propagate_nan) {
  for_rows(input.rows, input.n, [&](std::int64_t row, bool shared) {
    Entry result = smallest(input, row, k + 1, shared).back();
    if (propagate_nan) {
      constexpr std::int64_t kBlock = 1024;
      Entry block[kBlock];
      for (std::int64_t begin = 0; begin < input.n; begin += kBlock) {
        const std::int64_t count = std::min(kBlock, input.n - begin);
        input.read(row, begin, begin + count, block);
        const Entry* const found =
            std::find_if(block, block + count, [&](const Entry& e) { return e.key_is(input.nan_key); });
        if (found == block + count) continue;
        result = *found;
        break;
      }
    }
    out.write(row, &result, 1, row);
  });
}

/// Calls f with the Input and the Output for elements of type T.
template <class T, class Args, class F>
void with_entries(const Args& a, bool descending, const F& f) {
  const T* const x = a.x.template as<T>();
  void* const values = a.values ? a.values.template as<T>() : nullptr;
  const auto call = [&]<class Entry>() {
    f(Input<Entry>{a.rows, a.n, x, descending, &encode<T, Entry>, kNaNKey<Compute<T>>},
      Output<Entry>{a.n, x, values, a.indices.template as<std::int64_t>(), sizeof(T)});
  };
  if (sizeof(T) < 8 && a.n <= std::int64_t{1} << 31) call.template operator()<Narrow>();
  else call.template operator()<Wide>();
}

template <class T>
void sort_kernel(const LaunchContext&, const SortArgs& a) {
  if constexpr (std::is_integral_v<T>)
    if (!a.indices) {
      using Entry = typename Values<T>::Entry;
      const SortKey<T> flip = a.descending ? ~SortKey<T>{0} : SortKey<T>{0};
      return sort_rows(
          Input<Entry>{a.rows, a.n, a.x.as<T>(), a.descending, &encode<T, Entry>, kNaNKey<Compute<T>>},
          Values<T>{a.values.as<T>(), flip}, a.k);
    }
  with_entries<T>(a, a.descending, [&](const auto& input, const auto& out) { sort_rows(input, out, a.k); });
}

template <class T>
void kthvalue_kernel(const LaunchContext&, const KthvalueArgs& a) {
  with_entries<T>(a, false, [&](const auto& input, const auto& out) {
    kth_rows(input, out, a.k, a.propagate_nan && is_floating(dtype_of<T>));
  });
}

template <class T>
void put_kernel(const LaunchContext&, const PutArgs& p) {
  const T* const x = p.x.as<T>();
  T* const y = p.y.as<T>();
  const std::int64_t* const index = p.index.as<std::int64_t>();
  parallel_for(p.rows, grain_of(p.k), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t j = row * p.k; j < (row + 1) * p.k; ++j) y[row * p.n + index[j]] = x[j];
  });
}

const bool filled =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T> {
      sort.set(DeviceType::cpu, dtype_of<T>, &sort_kernel<T>);
      kthvalue.set(DeviceType::cpu, dtype_of<T>, &kthvalue_kernel<T>);
    }) &&
    for_types<float, double, Half, BFloat16, std::int64_t>(
        []<class T> { put.set(DeviceType::cpu, dtype_of<T>, &put_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
