#pragma once
// Pictures of the documentation: drawn from what the library does, and compared with the files in
// docs/pictures. tests/README.md says how to redraw them.
#include <string>

namespace pictures {

/// An SVG of 480 units across, which follows the theme of the reader. A page on a phone is 358 pixels wide,
/// so its text of 15 units is 11 pixels high there.
///
/// Classes of boxes: c0 to c3 are the colours of ranks or groups, "grey" is anything else, "none" is empty.
/// Classes of texts: b is bold, s is soft.
class Picture {
 public:
  static constexpr double kWidth = 480;

  void text(double x, double y, const std::string& text, const std::string& classes = "",
            const char* anchor = "start");
  void middle(double x, double y, const std::string& text, const std::string& classes = "");
  /// A rectangle, with a text in its centre. Rectangles that follow each other are one path, if they have the
  /// same class and no texts.
  void box(double x, double y, double width, double height, const std::string& classes,
           const std::string& inside = "");
  /// Empty cells of this size.
  void grid(double x, double y, int across, int down, double width, double height);
  void line(double x1, double y1, double x2, double y2, const std::string& classes = "l");
  /// A line with a head at its end.
  void arrow(double x1, double y1, double x2, double y2);
  void svg(const std::string& text) { body_ += text; }

  /// Compares the picture with docs/pictures/`name`.svg, or writes it if TAPESTRY_WRITE_DOCS is set. `title`
  /// is what a screen reader says of it.
  void compare(const std::string& name, double height, const std::string& title) const;

 private:
  std::string body_, last_classes_;
  std::size_t last_end_ = 0;  // of the path of the last rectangle
};

/// "c0" to "c3"
std::string colour(std::size_t number);

}  // namespace pictures
