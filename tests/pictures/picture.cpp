#include "tests/pictures/picture.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "tapestry/apps/common/svg_text.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

namespace pictures {
namespace {

constexpr const char* kStyle =
    "<style>text{font:15px sans-serif;fill:#1c1f23}.b{font-weight:bold}.s{fill:#57606a}"
    ".c0,.c1,.c2,.c3,.grey,.none{stroke:#6e7781}.paper{fill:#fff}.none{fill:none}.grey{fill:#e3e7eb}"
    ".c0{fill:#bcd5f2}.c1{fill:#f8c9cd}.c2{fill:#bfe5c8}.c3{fill:#f2e2a0}"
    ".l{stroke:#57606a;stroke-width:1.5;fill:none}.h{fill:#57606a}.grid{stroke:#8886}\n"
    "@media(prefers-color-scheme:dark){text{fill:#e4e7ea}.s{fill:#a3adb7}"
    ".c0,.c1,.c2,.c3,.grey,.none{stroke:#8b949e}.paper{fill:#14171a}.grey{fill:#373d44}"
    ".c0{fill:#24497a}.c1{fill:#7c3039}.c2{fill:#26592f}.c3{fill:#665411}"
    ".l{stroke:#a3adb7}.h{fill:#a3adb7}}</style>\n";

// At most one digit behind the point: other digits might differ between processors.
std::string number(double value) {
  std::string out;
  apps::put(out, "%g", std::round(value * 10) / 10 + 0.0);
  return out;
}

}  // namespace

std::string colour(std::size_t number) { return "c" + std::to_string(number % 4); }

void Picture::text(double x, double y, const std::string& text, const std::string& classes,
                   const char* anchor) {
  body_ += "<text x='" + number(x) + "' y='" + number(y) + "'";
  if (!classes.empty()) body_ += " class='" + classes + "'";
  if (std::string(anchor) != "start") body_ += std::string(" text-anchor='") + anchor + "'";
  body_ += ">" + apps::escaped(text) + "</text>\n";
}

void Picture::middle(double x, double y, const std::string& text, const std::string& classes) {
  this->text(x, y, text, classes, "middle");
}

void Picture::box(double x, double y, double width, double height, const std::string& classes,
                  const std::string& inside) {
  if (last_end_ == body_.size() && last_classes_ == classes)
    body_.resize(last_end_ - 4);  // without its "'/>\n"
  else body_ += "<path class='" + classes + "' d='";
  const std::string w = number(width);
  body_ += "M" + number(x) + " " + number(y) + "h" + w + "v" + number(height) + "h-" + w + "z'/>\n";
  last_end_ = body_.size();
  last_classes_ = classes;
  if (!inside.empty()) middle(x + width / 2, y + height / 2 + 5, inside);
}

void Picture::grid(double x, double y, int across, int down, double width, double height) {
  body_ += "<path class='none' d='";
  for (int i = 0; i <= across; ++i)
    body_ += "M" + number(x + width * i) + " " + number(y) + "v" + number(height * down);
  for (int i = 0; i <= down; ++i)
    body_ += "M" + number(x) + " " + number(y + height * i) + "h" + number(width * across);
  body_ += "'/>\n";
}

void Picture::line(double x1, double y1, double x2, double y2, const std::string& classes) {
  body_ += "<path d='M" + number(x1) + " " + number(y1) + "L" + number(x2) + " " + number(y2) + "' class='" +
           classes + "'/>\n";
}

void Picture::arrow(double x1, double y1, double x2, double y2) {
  constexpr double kHead = 8;
  const double length = std::hypot(x2 - x1, y2 - y1), dx = (x2 - x1) / length, dy = (y2 - y1) / length;
  const double x = x2 - kHead * dx, y = y2 - kHead * dy;  // where the head begins
  line(x1, y1, x, y);
  const auto point = [](double a, double b) { return number(a) + " " + number(b); };
  body_ += "<path d='M" + point(x2, y2) + "L" + point(x - kHead / 2 * dy, y + kHead / 2 * dx) + "L" +
           point(x + kHead / 2 * dy, y - kHead / 2 * dx) + "Z' class='h'/>\n";
}

void Picture::compare(const std::string& name, double height, const std::string& title) const {
  const std::string h = number(height), w = number(kWidth);
  const std::string all = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " + w + " " + h +
                          "' width='" + w + "' height='" + h + "' role='img'>\n<title>" +
                          apps::escaped(title) + "</title>\n" + kStyle + "<rect width='" + w + "' height='" +
                          h + "' class='paper'/>\n" + body_ + "</svg>\n";
  const std::string path = tests::source_path("docs/pictures/" + name + ".svg");
  if (std::getenv("TAPESTRY_WRITE_DOCS")) tests::write_file(path, all);
  INFO("docs/pictures/" << name
                        << ".svg is out of date; run this test with TAPESTRY_WRITE_DOCS=1, and look at it");
  CHECK((std::filesystem::exists(path) && tests::read_file(path) == all));
}

}  // namespace pictures
