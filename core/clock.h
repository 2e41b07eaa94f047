#pragma once
// The durations, time points and clocks of <chrono>, for headers. In g++ 12 and later, <chrono> also has
// calendars, time zones and formatting, which every file that includes tapestry.h would compile.
#if __has_include(<bits/chrono.h>)
#include <bits/chrono.h>
#else
#include <chrono>
#endif
