#pragma once
// This folder has the name of one of the library's folders, core/. The consumer's includes must find this
// one.
int batch_size();
