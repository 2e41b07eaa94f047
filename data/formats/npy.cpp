#include "tapestry/data/formats/npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <string_view>
#include <vector>

#include "tapestry/core/atomic_file.h"
#include "tapestry/data/collate.h"
#include "tapestry/data/formats/internal/input_file.h"
#include "tapestry/data/formats/internal/npy_stream.h"

namespace tapestry::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are written in the machine's order as little-endian");

// NumPy refuses longer headers, too, because parsing them could take long.
constexpr std::size_t kLongestHeader = 10000;

struct NpyType {
  DType dtype;
  char code;
  int bytes;
};
constexpr NpyType kNpyTypes[] = {{DType::f32, 'f', 4},  {DType::f64, 'f', 8},    {DType::f16, 'f', 2},
                                 {DType::bf16, 'V', 2}, {DType::i64, 'i', 8},    {DType::i32, 'i', 4},
                                 {DType::i16, 'i', 2},  {DType::i8, 'i', 1},     {DType::u16, 'u', 2},
                                 {DType::u8, 'u', 1},   {DType::boolean, 'b', 1}};
static_assert(std::size(kNpyTypes) == kNumDTypes);

/// What a header says.
struct Header {
  DType dtype = DType::f32;
  bool widened = false;  // uint32 elements that become i64
  bool big_endian = false;
  bool fortran_order = false;
  Shape sizes;
  std::uint64_t bytes = 0;  // of the elements in the file
};

/// Parses {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, a Python dictionary.
class HeaderParser {
 public:
  HeaderParser(const NpySource& source, std::string_view text) : source_(source), text_(text) {}

  Header parse() {
    expect('{');
    int seen = 0;
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      const int field = key == "descr" ? 1 : key == "fortran_order" ? 2 : key == "shape" ? 4 : 0;
      if (field == 0) broken("the unknown field '" + key + "'");
      if (seen & field) broken("'" + key + "' twice");
      seen |= field;
      if (field == 1) descr(string());
      else if (field == 2) header_.fortran_order = boolean();
      else shape();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (seen != 7) broken("no 'descr', 'fortran_order' or 'shape'");
    if (at_ < text_.size()) broken("text after its end");
    measure();
    return header_;
  }

 private:
  [[noreturn]] void broken(const std::string& what) const {
    source_.broken("its header has " + what + "; it is damaged or not an NPY file");
    fail<IoError>("[load_npy] ", what);  // not reached
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_blanks();
    return true;
  }
  void expect(char c) {
    if (!accept(c)) broken(concat({"no '", std::string_view(&c, 1), "' at position ", at_}));
  }
  std::string string() {
    skip_blanks();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') {
      if (quote == '[')
        source_.broken("holds records with several fields, which are not supported; save one field per file");
      broken(concat({"no text at position ", at_}));
    }
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) broken("an open quote");
    const std::string out(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return out;
  }
  bool boolean() {
    skip_blanks();
    for (const bool value : {true, false}) {
      const std::string_view name = value ? "True" : "False";
      if (!text_.substr(at_).starts_with(name)) continue;
      at_ += name.size();
      return value;
    }
    broken("neither True nor False as 'fortran_order'");
  }
  void shape() {
    expect('(');
    while (!accept(')')) {
      std::int64_t size = 0;
      const char* const end = text_.data() + text_.size();
      const auto [stop, error] = std::from_chars(text_.data() + at_, end, size);
      if (error != std::errc() || size < 0) broken("no number in its shape");
      at_ = static_cast<std::size_t>(stop - text_.data());
      if (header_.sizes.size() == kMaxDims)
        source_.broken(concat({"has more than ", kMaxDims, " dimensions, which is not supported"}));
      header_.sizes.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
  }
  void descr(const std::string& text) {
    const auto unsupported = [&] {
      source_.broken("has elements of NumPy's type '" + text +
                     "', which is not supported; convert them before you save them");
    };
    if (text.size() < 3 || std::string_view("<>|=").find(text[0]) == std::string_view::npos) unsupported();
    int bytes = 0;
    const auto [stop, error] = std::from_chars(text.data() + 2, text.data() + text.size(), bytes);
    if (error != std::errc() || stop != text.data() + text.size()) unsupported();
    header_.big_endian = text[0] == '>';
    for (const NpyType& kind : kNpyTypes) {
      if (kind.code != text[1] || kind.bytes != bytes) continue;
      header_.dtype = kind.dtype;
      item_ = kind.bytes;
      return;
    }
    if (text[1] != 'u' || bytes != 4) unsupported();
    header_.dtype = DType::i64;
    header_.widened = true;
    item_ = 4;
  }
  void measure() {
    std::uint64_t bound = static_cast<std::uint64_t>(item_);
    header_.bytes = bound;
    for (const std::int64_t size : header_.sizes) {
      // Dimensions of size 0 are left out of the product, because they would hide an overflow of the others.
      const std::uint64_t n = static_cast<std::uint64_t>(size), factor = std::max<std::uint64_t>(n, 1);
      if (bound > (std::uint64_t{1} << 61) / factor)
        source_.broken(
            concat({"its header claims the shape ", header_.sizes, ", which is beyond any memory"}));
      bound *= factor;
      header_.bytes *= n;
    }
  }

  const NpySource& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  int item_ = 0;
  Header header_;
};

Header read_header(const NpySource& source) {
  unsigned char start[8];
  source.read(start, 8, "header");
  if (std::memcmp(start, "\x93NUMPY", 6) != 0) source.broken("does not begin like an NPY file");
  if (start[6] < 1 || start[6] > 3 || start[7] != 0)
    source.broken(concat({"has NPY version ", static_cast<int>(start[6]), ".", static_cast<int>(start[7]),
                          "; versions 1.0 to 3.0 are supported"}));
  unsigned char length[4] = {};
  source.read(length, start[6] == 1 ? 2 : 4, "header");
  const std::uint32_t bytes = length[0] | std::uint32_t{length[1]} << 8 | std::uint32_t{length[2]} << 16 |
                              std::uint32_t{length[3]} << 24;
  if (bytes > kLongestHeader)
    source.broken(concat({"its header claims ", bytes, " bytes, and NumPy's have at most ", kLongestHeader}));
  std::string text(bytes, '\0');
  source.read(text.data(), text.size(), "header");
  return HeaderParser(source, text).parse();
}

void swap_bytes(char* data, std::size_t bytes, std::size_t item) {
  for (std::size_t i = 0; i < bytes; i += item) std::reverse(data + i, data + i + item);
}

Shape fortran_strides(const Shape& sizes) {
  Shape strides = sizes;
  std::int64_t step = 1;
  for (int i = 0; i < sizes.size(); ++i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

}  // namespace

Tensor read_npy(const NpySource& source) {
  const Header header = read_header(source);
  source.expect_room(header.bytes, "data");
  Tensor out = empty(header.sizes, {header.dtype, kCPU});
  const std::size_t bytes = static_cast<std::size_t>(header.bytes);
  if (header.widened) {
    std::vector<std::uint32_t> raw(bytes / 4);
    source.read(raw.data(), bytes, "data");
    if (header.big_endian) swap_bytes(reinterpret_cast<char*>(raw.data()), bytes, 4);
    std::copy(raw.begin(), raw.end(), out.data<std::int64_t>());
  } else {
    source.read(out.raw_data(), bytes, "data");
    if (header.big_endian) swap_bytes(static_cast<char*>(out.raw_data()), bytes, dtype_size(header.dtype));
    if (header.dtype == DType::boolean) {
      const unsigned char* flags = static_cast<const unsigned char*>(out.raw_data());
      if (std::any_of(flags, flags + bytes, [](unsigned char flag) { return flag > 1; }))
        source.broken("holds bools that are neither 0 nor 1");
    }
  }
  if (!header.fortran_order) return out;
  return dense(tapestry::detail::raw_view(out, header.sizes, fortran_strides(header.sizes), 0));
}

std::string npy_header(const Tensor& x, bool fortran_order) {
  const NpyType* kind = std::find_if(std::begin(kNpyTypes), std::end(kNpyTypes),
                                     [&](const NpyType& k) { return k.dtype == x.dtype(); });
  const Shape& sizes = x.sizes();
  // NumPy calls an array Fortran-ordered only if it is not C-ordered as well.
  const auto longer = std::count_if(sizes.begin(), sizes.end(), [](std::int64_t n) { return n != 1; });
  fortran_order = fortran_order && longer > 1 && x.numel() > 0;
  std::string text = "{'descr': '";
  text += kind->bytes == 1 ? '|' : '<';
  text += kind->code + std::to_string(kind->bytes) +
          "', 'fortran_order': " + (fortran_order ? "True" : "False") + ", 'shape': (";
  for (int i = 0; i < sizes.size(); ++i)
    text += std::to_string(sizes[i]) + (i + 1 < sizes.size() ? ", " : sizes.size() == 1 ? "," : "");
  text += "), }";
  // NumPy leaves room for the dimension along which a file can grow, up to 21 digits.
  if (!sizes.empty()) {
    const std::size_t digits = std::to_string(fortran_order ? sizes.back() : sizes[0]).size();
    text.append(21 - digits, ' ');
  }
  constexpr std::size_t kStart = 10, kAlign = 64;  // bytes before the text, and the alignment of the elements
  text.append(kAlign - (kStart + text.size() + 1) % kAlign, ' ');
  text += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(text.size() & 255);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

Tensor npy_elements(const char* op, const Tensor& x, bool fortran_order) {
  check_cpu(op, x, "the tensor");
  if (!fortran_order) return dense(x);
  Shape sizes = x.sizes(), strides = x.strides();
  std::reverse(sizes.begin(), sizes.end());
  std::reverse(strides.begin(), strides.end());
  return dense(tapestry::detail::raw_view(x, sizes, strides, x.storage_offset()));
}

Tensor load_npy(const std::string& path) {
  InputFile file("load_npy", path);
  const NpySource source{[&](void* out, std::size_t bytes, const char* what) { file.read(out, bytes, what); },
                         [&](std::uint64_t bytes, const char* what) { file.expect_room(bytes, what); },
                         [&](const std::string& what) { file.broken(what); }};
  Tensor out = read_npy(source);
  file.expect_end();
  return out;
}

void save_npy(const std::string& path, const Tensor& x, SaveNpyOptions options) {
  const Tensor elements = npy_elements("save_npy", x, options.fortran_order);
  AtomicFile file(path);
  file.write(npy_header(x, options.fortran_order));
  if (elements.nbytes() > 0) file.write(elements.raw_data(), elements.nbytes());
  file.commit();
}

}  // namespace tapestry::data
