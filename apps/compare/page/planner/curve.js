// The twin of distributed/planner: one file for each C++ file, the same names, and the same order of operations, so
// that the results are equal bit for bit. Only + - * / and comparisons: JavaScript fixes these exactly.
// This file: curve.cpp and the costs of profile.cpp.
function at_(points, samples) {
  if (points.length === 0) return 0;
  if (points.length === 1) return points[0][1];
  let i = 1;
  while (i + 1 < points.length && points[i][0] < samples) ++i;
  const [x0, y0] = points[i - 1], [x1, y1] = points[i];
  const slope = (y1 - y0) / (x1 - x0);
  if (samples > x1) return y1 + Math.max(slope, 0) * (samples - x1);
  if (samples >= x0) return y0 + slope * (samples - x0);
  return Math.max(Math.min(y0, 0), y0 + Math.max(slope, 0) * (samples - x0));
}
const time = (cost, bytes) => cost.latency_s + cost.s_per_byte * bytes;
const ring_time = (message, bytes, n) => 2 * (n - 1) * time(message, bytes / n);
const half_ring_time = (message, bytes, n) => (n - 1) * time(message, bytes / n);
const is_free = message => message.latency_s === 0 && message.s_per_byte === 0;
const gather_s = (a, bytes, n) => half_ring_time(is_free(a.gather_message) ? a.message : a.gather_message, bytes, n);
const scatter_s = (a, bytes, n) => half_ring_time(is_free(a.scatter_message) ? a.message : a.scatter_message, bytes, n);
const peer_s = (a, bytes) => time(is_free(a.peer_message) ? a.message : a.peer_message, bytes);
