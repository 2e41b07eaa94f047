# Install tree and CMake package.
