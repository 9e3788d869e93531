// SPDX-License-Identifier: Apache-2.0
// Libraries that register what the core lacks: a kind of device, of module, or both.
#ifndef PORTCALL_LOADER_PLUGINS_H_
#define PORTCALL_LOADER_PLUGINS_H_

#include <string>

namespace portcall::loader {

// Loads the plug-in for a kind of device or module, if one is known. Each kind is looked for once; a plug-in that does not
// load throws each time.
//
//   1. PORTCALL_DEVICES=kind=path:kind=path …
//   2. the libraries that come with the core, unless it is a part of the program: they need it as a library
//   3. the global function portcall.FindPlugin(kind), with which a front end names the path of an installed one, or "", or
//      throws what to do
void LoadPlugin(const std::string& kind);

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_PLUGINS_H_
