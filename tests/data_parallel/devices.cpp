#include <cstdlib>

// Creates cpu:0 to cpu:3. The variable must be set before the first use of a device.
static const int kFourDevices = setenv("TAPESTRY_LOGICAL_DEVICES", "4", 0);
