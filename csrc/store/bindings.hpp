#pragma once

#include <nanobind/nanobind.h>

void bind_store(nanobind::module_& m);
