// Validates values by definitions of a JSON Schema (draft 2020-12) with ajv. Standard input: the folder of ajv, the file of the
// schema, and [definition, value, name] of each. Standard output: a sentence for each that is not valid.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { packages, schema, values } = JSON.parse(readFileSync(0, "utf8"));
const required = createRequire(`${packages}/`);
const Ajv = required("ajv/dist/2020").default;
const formats = required("ajv-formats").default;

// Not strict, because the schema has examples that draft 2020-12 does not know.
const ajv = new Ajv({ strict: false, allErrors: true });
formats(ajv);
const bundle = JSON.parse(readFileSync(schema, "utf8"));
ajv.addSchema(bundle);
const complaints = [];
for (const [definition, value, name] of values) {
  const validate = ajv.getSchema(`${bundle.$id}#/$defs/${definition}`);
  if (!validate) complaints.push(`there is no definition ${definition}`);
  else if (!validate(value)) complaints.push(`${name} is no ${definition}: ${ajv.errorsText(validate.errors)}`);
}
console.log(JSON.stringify(complaints));
