#pragma once
// Named as a folder of the library is.
int batch_size();
